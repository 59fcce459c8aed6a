"""YAML reader for plain JSON values with line numbers.

It accepts a subset of YAML: one document, no anchors, aliases or tags, every key a text, no duplicate keys. Values
follow the core schema of YAML 1.2, so `no`, `on` and dates stay text. Parser events are assembled without recursion and
with limits on size and depth, so that an untrusted file can be refused but do no harm.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

import yaml

from holdfast.core.flows.refusal import shown
from holdfast.core.values.bounds import NESTING_MAX
from holdfast.errors import Invalid

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?[0-9]{1,4000}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_ENDLESS = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_STRING_TAG = "tag:yaml.org,2002:str"


class Block(dict[str, Any]):
    """A mapping, the line on which it begins, and the line of each key."""

    __slots__ = ("line", "lines")

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}


class Items(list[Any]):
    """A list, the line on which it begins, and the line of each item."""

    __slots__ = ("line", "lines")

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: list[int] = []


def refuse(file: str, line: int, code: str, detail: str, advice: str = "", **fields: Any) -> Invalid:
    """Build an error that names file and line; `code` is without the family prefix."""
    return Invalid(
        f"{file}:{line}: {detail}", code=f"DAG_VALIDATION_{code}", advice=advice, file=file, line=line, **fields
    )


def read_yaml(text: bytes, *, file: str, bytes_max: int) -> Any:
    """Read one document; `file` names it in errors."""
    if len(text) > bytes_max:
        raise refuse(
            file, 1, "DEFINITION_TOO_LARGE", f"It has more than {bytes_max} bytes.", "Split it.", limit=bytes_max
        )
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise _unreadable(file, line, "It is not UTF-8.") from error
    try:
        return _Reader(file).read(decoded)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = mark.line + 1 if mark is not None else _line_at(decoded, getattr(error, "position", 0))
        what = getattr(error, "problem", None) or getattr(error, "reason", None) or "it is not YAML"
        raise _unreadable(file, line, f"It cannot be read: {what}.") from error


class _Reader:
    """Assembles events.

    The last entry of `_open` is the innermost open container, the last of `_keys` its pending key.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._open: list[Block | Items] = []
        self._keys: list[str | None] = []
        self._documents = 0
        self._document: Any = None

    def read(self, text: str) -> Any:
        for event in yaml.parse(text, Loader=_Loader):
            match event:
                case yaml.ScalarEvent():
                    self._scalar(event)
                case yaml.MappingStartEvent():
                    self._begin(Block(_line(event)), event)
                case yaml.SequenceStartEvent():
                    self._begin(Items(_line(event)), event)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    self._open.pop()
                    self._keys.pop()
                case yaml.AliasEvent():
                    self._refuse(event, "It uses an alias, which is not supported.", "Write the value out.")
                case yaml.DocumentStartEvent():
                    self._documents += 1
                    if self._documents > 1:
                        self._refuse(event, "It has a second document.", "Keep one document per file.")
        return self._document

    def _begin(self, made: Block | Items, event: Any) -> None:
        self._check(event)
        if self._open and isinstance(self._open[-1], Block) and self._keys[-1] is None:
            self._refuse(event, "A key is a list or a mapping.", "Keys must be strings.")
        if len(self._open) >= NESTING_MAX:
            raise refuse(
                self._file,
                _line(event),
                "DEFINITION_TOO_DEEP",
                f"It nests deeper than {NESTING_MAX} levels.",
                "Flatten it.",
            )
        self._add(made, event)
        self._open.append(made)
        self._keys.append(None)

    def _scalar(self, event: Any) -> None:
        self._check(event)
        if self._open and isinstance(self._open[-1], Block) and self._keys[-1] is None:
            if event.value in self._open[-1]:
                self._refuse(event, f"The key {shown(event.value)} appears twice.", "Remove one.")
            self._keys[-1] = event.value
            return
        self._add(self._value(event), event)

    def _value(self, event: Any) -> Any:
        text: str = event.value
        if not event.implicit[0] or event.tag == _STRING_TAG:
            return text
        if text in _NULLS:
            return None
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        if _INTEGER.fullmatch(text):
            return int(text)
        if _ENDLESS.fullmatch(text):
            self._refuse(event, f"{text} is not a finite number.", "Quote it if it is a string.")
        return float(text) if _FLOAT.fullmatch(text) else text

    def _add(self, value: Any, event: Any) -> None:
        if not self._open:
            self._document = value
            return
        place = self._open[-1]
        if isinstance(place, Block):
            key = self._keys[-1]
            assert key is not None
            place[key] = value
            place.lines[key] = _line(event)
            self._keys[-1] = None
        else:
            place.append(value)
            place.lines.append(_line(event))

    def _check(self, event: Any) -> None:
        if event.anchor is not None:
            self._refuse(event, f"It defines the anchor {shown(event.anchor)}, which is not supported.", "Remove it.")
        if event.tag is not None and event.tag not in ("!", _STRING_TAG):
            self._refuse(event, f"It uses the tag {shown(event.tag)}, which is not supported.", "Remove it.")

    def _refuse(self, event: Any, detail: str, advice: str) -> NoReturn:
        raise _unreadable(self._file, _line(event), detail, advice)


def _unreadable(file: str, line: int, detail: str, advice: str = "") -> Invalid:
    return refuse(file, line, "DEFINITION_PARSE_FAILED", detail, advice)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _line_at(text: str, position: Any) -> int:
    return text.count("\n", 0, position) + 1 if isinstance(position, int) else 1
