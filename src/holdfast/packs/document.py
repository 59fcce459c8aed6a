"""YAML with line numbers: a document as plain values, and where in its file each of them stands.

Only what JSON can say is read: no tags, no dates, no duplicate keys, and no document that grows by referring to itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml

FILE_BYTES_MAX = 256 * 1024
VALUES_MAX = 20_000

Where: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Problem:
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
    problems: list[Problem] = field(default_factory=list)

    def line(self, *where: str | int) -> int:
        """The line of a value, or of the nearest one around it."""
        while where and where not in self.lines:
            where = where[:-1]
        return self.lines.get(where, 1)

    def complain(self, text: str, *where: str | int, advice: str = "", is_warning: bool = False) -> None:
        line = self.line(*where)
        self.problems.append(Problem(file=str(self.path), line=line, text=text, advice=advice, is_warning=is_warning))


def read_document(path: Path) -> Document:
    """Read one file; what is wrong with it is in `problems`, never raised."""
    document = Document(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        document.complain(f"The file cannot be read: {error.strerror or error}.")
        return document
    if len(raw) > FILE_BYTES_MAX:
        document.complain(f"The file has {len(raw)} bytes; at most {FILE_BYTES_MAX} are read.")
        return document
    try:
        loader = yaml.SafeLoader(raw.decode())
        node = loader.get_single_node()
    except UnicodeDecodeError:
        document.complain("The file is not UTF-8.")
        return document
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        document.lines[()] = 1 if mark is None else mark.line + 1
        document.complain(f"This is not YAML: {error.problem or error.context}.")
        return document
    except yaml.YAMLError as error:
        document.complain(f"This is not YAML: {' '.join(str(error).split())}.")
        return document
    if node is not None:
        document.value = _Reader(document, loader).read(node, ())
    return document


class _Reader:
    """Turns nodes into values, counting them: a document may not unfold into more than it could have written out."""

    def __init__(self, document: Document, loader: yaml.SafeLoader) -> None:
        self._document = document
        self._loader = loader
        self._count = 0

    def read(self, node: yaml.Node, where: Where) -> Any:
        self._document.lines[where] = node.start_mark.line + 1
        self._count += 1
        if self._count > VALUES_MAX:
            if self._count == VALUES_MAX + 1:
                self._document.complain(f"The document holds more than {VALUES_MAX} values.", *where)
            return None
        match node:
            case yaml.MappingNode():
                return self._mapping(node, where)
            case yaml.SequenceNode():
                return [self.read(item, (*where, index)) for index, item in enumerate(node.value)]
            case _:
                return self._scalar(node, where)

    def _mapping(self, node: yaml.MappingNode, where: Where) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node, where) if isinstance(key_node, yaml.ScalarNode) else None
            self._document.lines[(*where, str(key))] = key_node.start_mark.line + 1
            if not isinstance(key, str):
                self._document.complain(f"The key {key!r} is not text.", *where, str(key), advice="Quote it.")
            elif key in found:
                self._document.complain(f"{key} is given twice.", *where, key)
            else:
                found[key] = self.read(value_node, (*where, key))
        return found

    def _scalar(self, node: yaml.Node, where: Where) -> Any:
        try:
            value = self._loader.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            reason = getattr(error, "problem", None) or str(error)
            self._document.complain(f"This value cannot be read: {reason}.", *where)
            return None
        if value is None or isinstance(value, str | int | float | bool):
            return value
        kind = type(value).__name__
        self._document.complain(f"A value of type {kind} is not JSON.", *where, advice="Quote it to make it text.")
        return None
