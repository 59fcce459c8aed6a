"""Pages that follow from tables in the code are current."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from holdfast.cli.main import cli
from holdfast.settings.settings import options

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
TOOL = runpy.run_path(str(ROOT / "tools" / "generate_docs.py"))
PAGES = TOOL["pages"]()


def test_every_generated_page_is_current():
    stale = [path.name for path, text in PAGES.items() if not path.is_file() or path.read_text() != text]
    assert not stale, "run tools/generate_docs.py"


def test_every_setting_is_documented():
    page = PAGES[ROOT / "docs" / "settings.md"]
    for option in options():
        assert all(f"`{name}`" in page for name in (option.key, option.variable, *option.aliases))


def test_every_command_and_option_is_documented():
    page = PAGES[ROOT / "docs" / "cli.md"]
    for path, command in TOOL["leaves"](cli):
        assert f"## holdfast {' '.join(path)}" in page
        for param in command.params:
            assert param.param_type_name == "argument" or param.opts[-1] in page, (path, param.name)
