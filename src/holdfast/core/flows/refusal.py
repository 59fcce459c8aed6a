"""Errors for refused definitions, bindings and run inputs: one shape, a separate code for each case."""

from __future__ import annotations

from holdfast.errors import Invalid

_CHARACTERS_MAX = 80


def refusal(code: str, detail: str, advice: str = "", **fields: object) -> Invalid:
    """Build the error; `detail` names node and edge in words, `fields` in machine-readable form."""
    return Invalid(detail, code=code, advice=advice, **fields)


def shown(value: object) -> str:
    """Format a value of unknown origin, cut to a readable length."""
    text = repr(value[:_CHARACTERS_MAX] if isinstance(value, str) else value)
    return text if len(text) <= _CHARACTERS_MAX else f"{text[: _CHARACTERS_MAX - 1]}…"


def some_of(names: list[str]) -> str:
    """List the first names, for advice."""
    return ", ".join(names[:20]) or "nothing"
