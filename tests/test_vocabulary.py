"""Words that the code and the documentation no longer use; docs/glossary.md has the ones that replace them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RETIRED = (
    "anybody",
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


SPOKEN = re.compile(
    r"\b(somebody|nobody|whoever|anew|(?:goes|go|went) on|(?:is|are|was|were) told|repair loops?|hangs? up|so many)\b"
    r"|(?<!\bthere )\bis no (?!longer\b)",
    re.IGNORECASE,
)
"""Phrases without a subject, or with the wrong one: a text names the component and what it does."""
WRITTEN = (
    "authoring",
    "cli",
    "codec",
    "core",
    "launchers",
    "net",
    "protocol",
    "server",
    "settings",
    "testing",
    "wakeups",
)


def test_texts_name_the_component():
    files = [path for package in WRITTEN for path in (ROOT / "src" / "holdfast" / package).rglob("*.py")]
    assert len(files) > 250
    found = {
        str(path.relative_to(ROOT)): sorted({match[0] for match in matches})
        for path in files
        if (matches := list(SPOKEN.finditer(path.read_text("utf-8"))))
    }
    assert not found


def test_no_loop_variable_is_called_one():
    """`one` says nothing about what it is; a reader would have to look up the list."""
    loop = re.compile(r"\bfor one in\b|\blambda one:")
    files = [path for package in WRITTEN for path in (ROOT / "src" / "holdfast" / package).rglob("*.py")]
    found = [path.name for path in files if "launchers" not in path.parts and loop.search(path.read_text("utf-8"))]
    assert not found
