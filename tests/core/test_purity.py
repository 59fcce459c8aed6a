"""The core performs nothing: it imports neither clocks nor randomness nor IO nor other packages."""

from __future__ import annotations

import ast
from pathlib import Path

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
    "errno",
    "functools",
    "hashlib",
    "heapq",
    "hmac",
    "itertools",
    "json",
    "math",
    "operator",
    "re",
    "shlex",
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


MODULES = sorted(FOLDER.glob("*.py"))


def is_pure(name: str) -> bool:
    return name == "holdfast.errors" or name.startswith("holdfast.core.") or name.split(".")[0] in ALLOWED


def test_a_core_module_imports_only_pure_things():
    assert MODULES
    assert not {path.stem: wrong for path in MODULES if (wrong := [n for n in imported(path) if not is_pure(n)])}


def test_a_core_module_never_reads_the_clock():
    trees = {path.stem: ast.parse(path.read_text()) for path in MODULES}
    asked = {name: {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)} for name, tree in trees.items()}
    assert not {name: found for name, calls in asked.items() if (found := calls & {"now", "utcnow", "today"})}
