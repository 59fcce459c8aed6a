"""One setting as a value: its names, its type, its bounds and its documentation.

`setting()` declares an option as a field of a settings dataclass; `options_of()` collects the declarations into a
table. Values that may contain a secret never appear in a message.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import InvalidSettings

PREFIX = "HOLDFAST_"
LOCAL, PRODUCTION = "local", "production"
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

_WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting: where it is stored, its names and its accepted values."""

    section: str
    field: str
    flat_name: str
    kind: type
    default: Any
    doc: str
    lowest: float
    highest: float
    choices: tuple[str, ...]
    takes_reference: bool
    aliases: tuple[str, ...]
    is_secret: bool

    @property
    def variable(self) -> str:
        """The name of the environment variable."""
        return PREFIX + self.flat_name.upper()

    @property
    def key(self) -> str:
        """The TOML key."""
        return f"{self.section}.{self.field}" if self.section else self.field

    def read(self, value: object, *, source: str) -> Any:
        """Check one value and convert it to the option's type; text is parsed, other values must already fit."""
        try:
            parsed = _parsed(value, self.kind)
        except ValueError as error:
            raise self._refusal(value, str(error), source=source) from None
        if self.choices and parsed not in self.choices and not self._is_reference(parsed):
            raise self._refusal(value, f"it must be {' or '.join(self._accepted)}", source=source)
        if isinstance(parsed, int | float) and not self.lowest <= parsed <= self.highest:
            raise self._refusal(value, f"it must be in the range {self.bounds}", source=source)
        return parsed

    @property
    def bounds(self) -> str:
        """The accepted values, for people."""
        if self.choices:
            return ", ".join(self._accepted)
        if self.kind is bool:
            return "true, false"
        return f"{self.lowest:.15g} … {self.highest:.15g}" if self.kind in (int, float) else ""

    @property
    def _accepted(self) -> tuple[str, ...]:
        return (*self.choices, "module:factory") if self.takes_reference else self.choices

    def _is_reference(self, value: object) -> bool:
        return self.takes_reference and isinstance(value, str) and bool(_REFERENCE.fullmatch(value))

    def _refusal(self, value: object, why: str, *, source: str) -> InvalidSettings:
        shown = "" if self.is_secret else f" is {str(value)[:80]!r}"
        return InvalidSettings(f"{source}{shown}: {why}.", advice=f"It sets {self.key}: {self.doc}", setting=self.key)


def setting(
    default: Any,
    doc: str,
    *,
    kind: type | None = None,
    lowest: float = 0,
    highest: float = 1e15,
    choices: tuple[str, ...] = (),
    takes_reference: bool = False,
    flat_name: str = "",
    aliases: tuple[str, ...] = (),
    is_secret: bool = False,
) -> Any:
    """Declare a field of a settings dataclass as an option."""
    said = {
        "kind": kind or type(default),
        "doc": doc,
        "lowest": lowest,
        "highest": highest,
        "choices": choices,
        "takes_reference": takes_reference,
        "flat_name": flat_name,
        "aliases": aliases,
        "is_secret": is_secret,
    }
    return dataclasses.field(default=default, repr=not is_secret, metadata={"option": said})


def options_of(cls: type, *, section: str = "") -> tuple[Option, ...]:
    """Collect the options of a settings dataclass; other fields are left out."""
    found: list[Option] = []
    for field in dataclasses.fields(cls):
        if "option" not in field.metadata:
            continue
        said = dict(field.metadata["option"])
        flat_name = said.pop("flat_name") or field.name
        found.append(Option(section=section, field=field.name, flat_name=flat_name, default=field.default, **said))
    return tuple(found)


def table_of(options: Iterable[Option]) -> str:
    """Format options as a Markdown table."""
    lines = ["| TOML key | Variable | Default | Accepts | Meaning |", "|---|---|---|---|---|"]
    for option in options:
        names = ", ".join(f"`{name}`" for name in (option.variable, *option.aliases))
        default = f"`{_shown(option.default)}`" if option.default not in (None, ()) else "–"
        cells = (f"`{option.key}`", names, default, option.bounds or "–", option.doc)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _shown(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _parsed(value: object, kind: type) -> Any:
    """Convert text to the kind, and accept values that already are of it; `ValueError` says what it must be."""
    if kind is bool:
        return value if isinstance(value, bool) else _truth(value)
    if kind in (int, float):
        return _number(value, kind)
    if kind is tuple:
        return _names(value)
    if kind is Path and isinstance(value, str | Path):
        return Path(value).expanduser()
    return value if isinstance(value, str) else _refuse("it must be text")


def _truth(value: object) -> Any:
    is_word = isinstance(value, str) and value.lower() in _WORDS
    return _WORDS[str(value).lower()] if is_word else _refuse("it must be true or false")


def _names(value: object) -> Any:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        return _refuse("it must be a list of texts")
    return tuple(part.strip() for part in parts if part.strip())


def _number(value: object, kind: type) -> Any:
    noun = "a whole number" if kind is int else "a number"
    is_number = isinstance(value, int) or (isinstance(value, float) and kind is float)
    if isinstance(value, bool) or not (is_number or isinstance(value, str)):
        return _refuse(f"it must be {noun}")
    try:
        return kind(value)
    except (ValueError, OverflowError):
        return _refuse(f"it must be {noun}")


def _refuse(why: str) -> Any:
    raise ValueError(why)
