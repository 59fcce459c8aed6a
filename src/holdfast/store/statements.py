"""Every SQL statement by name, read once from `store/sql/*.sql`.

A statement starts with `-- name: …` and one sentence saying what it does and what its guard proves. Names are unique;
the tests refuse an unknown, unused or undescribed one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType

_HEADER = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def statements() -> Mapping[str, str]:
    """All statements, each with its leading comment kept so that it shows in the server's log."""
    found: dict[str, str] = {}
    for file in sorted(resources.files("holdfast.store.sql").iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        parts = _HEADER.split(file.read_text("utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            assert name not in found, f"statement {name} is defined twice"
            found[name] = f"-- holdfast: {name}\n{_without_comments(text)}"
    return MappingProxyType(found)


def sql(name: str) -> str:
    """The text of one statement."""
    return statements()[name]


def _without_comments(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if not line.startswith("--")]
    return "\n".join(lines).strip().removesuffix(";")
