"""Which code asks for a second session while it holds one: read from the source, without running it.

While a pooled session is held (`async with ….session() as session`, `….transaction() as session`, or a parameter
`session: Session`), everything that reaches the same pool must be given that session: a call of a method of a database,
a catalog, an engine or a client, or a call that is handed one of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

POOLS = frozenset({"database", "_database", "engine", "_engine", "client", "_client", "catalog", "_catalog", "flows"})
"""Names of what can ask the pool for a session."""
PURE = frozenset({
    "policy", "lane", "snapshot", "knows_lane", "knows_policy", "is_unreadable", "is_open", "spend", "notify", "order",
})  # fmt: skip
"""Methods of these that look at what is in memory, and ask for nothing."""
OPENS = frozenset({"session", "transaction"})
TAKES_SESSION = frozenset({"require", "learn"})
"""Methods that are given a session where the caller may have one."""


def second_sessions(path: Path) -> list[str]:
    """Where a file asks for a second session, as `file:line: the call`."""
    tree = ast.parse(path.read_text())
    found = {(call.lineno, ast.unparse(call)) for body, name in _held(tree) for call in _calls(body, name)}
    found |= {(call.lineno, ast.unparse(call)) for body, name in _may_be_held(tree) for call in _unsaid(body, name)}
    return [f"{path.name}:{line}: {text}" for line, text in sorted(found)]


def _held(tree: ast.AST) -> Iterator[tuple[list[ast.stmt], str]]:
    """Every block that runs while a pooled session is held, with the session's name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncWith):
            for item in node.items:
                opened = item.context_expr
                is_pooled = (
                    isinstance(opened, ast.Call)
                    and isinstance(opened.func, ast.Attribute)
                    and opened.func.attr in OPENS
                    and isinstance(item.optional_vars, ast.Name)
                )
                if is_pooled:
                    yield node.body, item.optional_vars.id  # type: ignore[union-attr]
        elif isinstance(node, ast.AsyncFunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            for one in arguments:
                if isinstance(one.annotation, ast.Name) and one.annotation.id == "Session":
                    yield node.body, one.arg


def _may_be_held(tree: ast.AST) -> Iterator[tuple[list[ast.stmt], str]]:
    """Every function to which the caller may hand a session, with its name there."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.AsyncFunctionDef):
            continue
        for one in (*node.args.args, *node.args.kwonlyargs):
            if one.annotation is not None and ast.unparse(one.annotation) == "Session | None":
                yield node.body, one.arg
            elif one.arg == "connection":
                yield node.body, "theirs"


def _unsaid(body: list[ast.stmt], session: str) -> Iterator[ast.Call]:
    for node in (node for statement in body for node in ast.walk(statement)):
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if is_call and node.func.attr in TAKES_SESSION and not _mentions(node, session):
            yield node


def _calls(body: list[ast.stmt], session: str) -> Iterator[ast.Call]:
    """Awaited calls that can reach a pool and are not given the session."""
    for statement in body:
        for node in ast.walk(statement):
            awaited = node.value if isinstance(node, ast.Await) else None
            if isinstance(node, ast.AsyncWith):
                awaited = next((item.context_expr for item in node.items), None)
            if isinstance(awaited, ast.Call) and _reaches_pool(awaited) and not _mentions(awaited, session):
                yield awaited


def _reaches_pool(call: ast.Call) -> bool:
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if method in PURE:
        return False
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    asked = call.func.value if isinstance(call.func, ast.Attribute) else None
    return any(_is_pool(one) for one in (*given, *([asked] if asked is not None else [])))


def _is_pool(expression: ast.expr) -> bool:
    if isinstance(expression, ast.Starred):
        return _is_pool(expression.value)
    if isinstance(expression, ast.Attribute):
        return expression.attr in POOLS or (expression.attr in ("allowance",) and _is_pool(expression.value))
    return isinstance(expression, ast.Name) and expression.id in POOLS


def _mentions(call: ast.Call, session: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == session for node in ast.walk(call))
