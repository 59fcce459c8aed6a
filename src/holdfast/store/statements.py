"""Every SQL statement by name, read once from the files of `store/sql/`.

A statement starts with `-- name: …` and a description of what it does and what its guard proves. Names are unique; the
tests refuse an unknown, unused or undescribed one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType

_HEADER = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement: its file, its description, and its text."""

    name: str
    file: str
    description: str
    text: str


@cache
def statements() -> Mapping[str, Statement]:
    """Return all statements. The name stays in the text, so that it shows in the server's log."""
    found: dict[str, Statement] = {}
    for place, file in _files(resources.files("holdfast.store.sql")):
        parts = _HEADER.split(file.read_text("utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            assert name not in found, f"statement {name} is defined twice"
            found[name] = _statement(name, place, text)
    return MappingProxyType(found)


def sql(name: str) -> str:
    """Return the text of one statement."""
    return statements()[name].text


def statements_in(folder: str) -> list[Statement]:
    """Return the statements of one folder, file by file."""
    return [statement for statement in statements().values() if statement.file.startswith(f"{folder}/")]


def _files(folder: Traversable, place: str = "") -> Iterator[tuple[str, Traversable]]:
    """Yield every SQL file below a folder with its relative path, sorted by name."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _files(entry, f"{place}{entry.name}/")
        elif entry.name.endswith(".sql"):
            yield f"{place}{entry.name}", entry


def _statement(name: str, file: str, text: str) -> Statement:
    lines = text.strip().splitlines()
    body = [line for line in lines if not line.startswith("--")]
    return Statement(
        name=name,
        file=file,
        description=" ".join(line.removeprefix("--").strip() for line in lines if line.startswith("--")),
        text=f"-- holdfast: {name}\n" + "\n".join(body).strip().removesuffix(";"),
    )
