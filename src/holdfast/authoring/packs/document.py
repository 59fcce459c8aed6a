"""Files of a pack: their values, the line of each value, and their problems.

They are read like flow files (see `codec.yaml_reader`): JSON values only, no duplicate keys, no self-references.
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
    """A problem with its file, line and advice. A warning does not prevent the use of the pack."""

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
    """One file. `lines` has the line of every value by its path of keys and indexes."""

    path: Path
    value: Any = None
    lines: dict[Where, int] = field(default_factory=dict)
    problems: list[PackProblem] = field(default_factory=list)

    def line(self, *where: str | int) -> int:
        """Return the line of a value, or of the nearest enclosing one."""
        while where and where not in self.lines:
            where = where[:-1]
        return self.lines.get(where, 1)

    def complain(self, text: str, *where: str | int, advice: str = "", is_warning: bool = False) -> None:
        line = self.line(*where)
        self.problems.append(
            PackProblem(file=str(self.path), line=line, text=text, advice=advice, is_warning=is_warning)
        )


def read_document(path: Path) -> Document:
    """Read one file; its problems are in `problems`, never raised."""
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
    """Return the value without its lines, which are recorded by path. The reader limits the nesting."""
    match value:
        case Block():
            document.lines |= {(*where, key): line for key, line in value.lines.items()}
            return {key: _plain(document, inner, (*where, key)) for key, inner in value.items()}
        case Items():
            document.lines |= {(*where, index): line for index, line in enumerate(value.lines)}
            return [_plain(document, inner, (*where, index)) for index, inner in enumerate(value)]
        case _:
            return value
