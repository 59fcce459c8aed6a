"""Statements have one name, one sentence and a use."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import holdfast
from holdfast.store.statements import sql, statements, statements_in

SOURCES = sorted(Path(holdfast.__file__).parent.rglob("*.py"))


@cache
def asked_for() -> frozenset[str]:
    """Every name that some module passes to `sql()`, and all invariants, which are asked for by folder."""
    names = {statement.name for statement in statements_in("invariants")}
    texts = [text for path in SOURCES if "sql(" in (text := path.read_text())]
    for text in texts:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "sql":
                names |= {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
    return frozenset(names)


def test_every_statement_that_is_asked_for_exists():
    assert not asked_for() - statements().keys()


def test_every_statement_is_used():
    assert not statements().keys() - asked_for()


def test_a_statement_describes_itself_in_sentences():
    said = {one.name: one.description for one in statements().values()}
    assert not {name: text for name, text in said.items() if not (text[:1].isupper() and text.endswith((".", "?")))}


def test_a_statement_shows_its_name_in_the_servers_log():
    texts = {one.name: one.text for one in statements().values()}
    assert not [name for name, text in texts.items() if not text.startswith(f"-- holdfast: {name}\n")]
    assert not [name for name, text in texts.items() if text.endswith(";")]


def test_an_unknown_statement_is_an_error():
    with pytest.raises(KeyError):
        sql("no_such_statement")
