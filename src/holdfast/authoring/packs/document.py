"""A file of a pack: its values, where in it each of them stands, and what is wrong with it.

It is read like the files of flows (see `yaml_text`): only what JSON can say, no key twice, nothing that refers to
itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from holdfast.codec.yaml_reader import Block, Items, read_yaml
from holdfast.errors import Invalid

FILE_BYTES_MAX = 256 * 1024

Where: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PackProblem:
    """What is wrong, in which file and line, and what to do. A warning does not keep a pack from being used."""

    file: str
    line: int
    text: str
    advice: str = ""
    is_warning: bool = False

    def __str__(self) -> str:
        advice = f" {self.advice}" if self.advice else ""
        return f"{self.file}:{self.line}: {self.text}{advice}"


@dataclass(slots=True)
class Document:
    """One file. `lines` knows the line of every value by its path of keys and indexes."""

    path: Path
    value: Any = None
    lines: dict[Where, int] = field(default_factory=dict)
    problems: list[PackProblem] = field(default_factory=list)

    def line(self, *where: str | int) -> int:
        """The line of a value, or of the nearest one around it."""
        while where and where not in self.lines:
            where = where[:-1]
        return self.lines.get(where, 1)

    def complain(self, text: str, *where: str | int, advice: str = "", is_warning: bool = False) -> None:
        line = self.line(*where)
        self.problems.append(
            PackProblem(file=str(self.path), line=line, text=text, advice=advice, is_warning=is_warning)
        )


def read_document(path: Path) -> Document:
    """Read one file; what is wrong with it is in `problems`, never raised."""
    document = Document(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        document.complain(f"The file cannot be read: {error.strerror or error}.")
        return document
    try:
        value = read_yaml(raw, file=str(path), bytes_max=FILE_BYTES_MAX)
    except Invalid as error:
        line = document.lines[()] = error.fields["line"]
        document.complain(error.detail.removeprefix(f"{path}:{line}: "), advice=error.advice)
        return document
    document.lines[()] = getattr(value, "line", 1)
    document.value = _plain(document, value, ())
    return document


def _plain(document: Document, value: Any, where: Where) -> Any:
    """The value without its lines, which are noted by path. It nests no deeper than the reader lets it."""
    match value:
        case Block():
            document.lines |= {(*where, key): line for key, line in value.lines.items()}
            return {key: _plain(document, inner, (*where, key)) for key, inner in value.items()}
        case Items():
            document.lines |= {(*where, index): line for index, line in enumerate(value.lines)}
            return [_plain(document, inner, (*where, index)) for index, inner in enumerate(value)]
        case _:
            return value
