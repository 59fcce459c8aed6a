"""Pages that follow from tables in the code are current."""

from __future__ import annotations

import runpy
from pathlib import Path

from holdfast.settings import options

ROOT = Path(__file__).resolve().parent.parent
PAGES = runpy.run_path(str(ROOT / "tools" / "generate_docs.py"))["pages"]()


def test_every_generated_page_is_current():
    stale = [path.name for path, text in PAGES.items() if not path.is_file() or path.read_text() != text]
    assert not stale, "run tools/generate_docs.py"


def test_every_setting_is_documented():
    page = PAGES[ROOT / "docs" / "settings.md"]
    for option in options():
        assert all(f"`{name}`" in page for name in (option.key, option.variable, *option.aliases))
