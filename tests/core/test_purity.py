"""The core performs nothing: it imports neither clocks nor randomness nor IO nor other packages."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import holdfast.core

FOLDER = Path(holdfast.core.__file__).parent
ALLOWED = {
    "__future__",
    "array",
    "base64",
    "collections",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "functools",
    "hashlib",
    "heapq",
    "hmac",
    "itertools",
    "json",
    "math",
    "operator",
    "re",
    "string",
    "traceback",
    "types",
    "typing",
}


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_core_module_imports_only_pure_things(path):
    for name in imported(path):
        is_ours = name == "holdfast.errors" or name.startswith("holdfast.core.")
        assert is_ours or name.split(".")[0] in ALLOWED, name


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_core_module_never_reads_the_clock(path):
    calls = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    assert not calls & {"now", "utcnow", "today"}
