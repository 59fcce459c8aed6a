"""Templates of requests and arguments: `${order_id}` stands for an input, `$$` for a dollar sign.

A text that consists of one name becomes the value itself, whatever its type; inside other text a value is written out.
Values are never evaluated as templates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_PART = re.compile(r"\$(?:\$|\{\s*([A-Za-z_][\w.]*)\s*\})")
_ALONE = re.compile(r"\$\{\s*([A-Za-z_][\w.]*)\s*\}")


class MissingInput(Exception):
    """A template names an input that the task does not have."""

    code = "invalid_parameters"

    def __init__(self, name: str) -> None:
        super().__init__(f"invalid parameters: the template names {name}, which the input does not have")


def render(template: Any, values: Mapping[str, Any]) -> Any:
    """Fill in a template of any JSON shape."""
    match template:
        case str():
            alone = _ALONE.fullmatch(template)
            return _value(alone[1], values) if alone else render_text(template, values)
        case list():
            return [render(item, values) for item in template]
        case dict():
            return {render_text(key, values): render(item, values) for key, item in template.items()}
        case _:
            return template


def render_text(template: str, values: Mapping[str, Any], escape: Callable[[str], str] = str) -> str:
    """Fill in a text; `escape` makes each value safe for its destination."""

    def fill(found: re.Match[str]) -> str:
        return "$" if found[1] is None else escape(as_text(_value(found[1], values)))

    return _PART.sub(fill, template)


def names_in(template: Any) -> Iterator[str]:
    """Yield the inputs that a template names, by their first part."""
    match template:
        case str():
            yield from (found[1].partition(".")[0] for found in _PART.finditer(template) if found[1])
        case list():
            for item in template:
                yield from names_in(item)
        case dict():
            for key, item in template.items():
                yield from names_in(key)
                yield from names_in(item)


def as_text(value: Any) -> str:
    """Format a value inside a text: text unchanged, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _value(path: str, values: Mapping[str, Any]) -> Any:
    found: Any = values
    for part in path.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise MissingInput(path)
        found = found[part]
    return found
