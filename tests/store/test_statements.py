"""Statements have one name, one sentence and a use."""

from __future__ import annotations

import ast
import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import holdfast
from holdfast.store.statements import sql, statements, statements_in

ROOT = Path(__file__).resolve().parents[2]
GENERATED = Path(holdfast.__file__).parent / "store" / "sql"
LOOKS_UP: set[str] = set()
SOURCES = sorted(Path(holdfast.__file__).parent.rglob("*.py"))


@cache
def called() -> frozenset[str]:
    """Every statement whose typed function some module refers to, and all invariants, which are run by folder."""
    names = {statement.name for statement in statements_in("invariants")}
    for path in SOURCES:
        text = path.read_text()
        if GENERATED in path.parents or "_sql" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id.endswith("_sql"):
                names.add(node.attr)
    return frozenset(names)


def test_every_statement_is_used():
    assert not statements().keys() - called()


def test_only_the_generated_modules_look_statements_up():
    """Everything else calls the typed functions."""
    lookups = {str(path) for path in SOURCES if "statements import" in (text := path.read_text()) and "sql(" in text}
    assert {path for path in lookups if str(GENERATED) not in path} == LOOKS_UP


async def test_the_typed_functions_match_the_statements(holdfast_url):
    generator = generate_store()
    stale = [
        path.name
        for path, text in generator.modules(await generator.describe(holdfast_url))
        if not path.exists() or path.read_text() != text
    ]
    assert not stale, "run python tools/generate_store.py"


def generate_store():
    """The tool, which is no part of the package."""
    specification = spec_from_file_location("generate_store", ROOT / "tools" / "generate_store.py")
    module = module_from_spec(specification)
    sys.modules["generate_store"] = module
    specification.loader.exec_module(module)
    return module


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
