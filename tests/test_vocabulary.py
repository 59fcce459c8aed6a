"""Words that the code and the documentation no longer use; docs/glossary.md has the ones that replace them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RETIRED = (
    "clerk",
    "farewell",
    "lifeline",
    "lobby",
    "occasion",
    "orphanage",
    "undertaker",
    "the bell",
    "the board",
    "the crew",
    "the desk",
    "the door",
    "the fuse",
    "the heart",
    "the hold",
)
PATTERN = re.compile(rf"\b({'|'.join(RETIRED)})\b", re.IGNORECASE)
FILES = sorted(
    path
    for folder in ("src", "bench", "docs", "README.md", "CONTRIBUTING.md", "SECURITY.md")
    for path in ([ROOT / folder] if (ROOT / folder).is_file() else (ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".sql", ".md") and "internal" not in path.parts
)


def test_no_retired_word_is_left():
    assert len(FILES) > 600
    found = {
        str(path.relative_to(ROOT)): sorted(set(words))
        for path in FILES
        if (words := PATTERN.findall(path.read_text("utf-8").lower()))
    }
    assert not found
