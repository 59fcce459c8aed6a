"""What a statement's plan looks like, and statements called by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.store.statements import sql

LITERALS = {
    "bigint[]": "'{1}'",
    "integer[]": "'{1}'",
    "smallint[]": "'{5}'",
    "uuid[]": "'{00000000-0000-0000-0000-000000000000}'",
    "bytea[]": "array['{}'::bytea]",
    "text[]": "'{x}'",
    "double precision[]": "'{0}'",
    "bigint": "1",
    "integer": "1",
    "smallint": "5",
    "double precision": "1",
    "text": "'x'",
    "uuid": "'00000000-0000-0000-0000-000000000000'",
    "jsonb": "'{}'",
}


class Node(dict):
    """One node of a plan, and those below it."""

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.get("Plans", ()):
            yield from Node(child).walk()


async def explain(session: Any, name: str) -> Node:
    """The generic plan of a statement: the one a worker's prepared statement ends up with."""
    await session.execute("set plan_cache_mode = force_generic_plan")
    await session.execute(f"prepare explained as {sql(name)}")
    types = await session.fetchval(
        "select parameter_types::text[] from pg_prepared_statements where name = 'explained'"
    )
    values = ", ".join(LITERALS[kind] for kind in types)
    execute = f"execute explained ({values})" if types else "execute explained"
    plan = json.loads(await session.fetchval(f"explain (format json, costs off) {execute}"))
    await session.execute("deallocate explained")
    return Node(plan[0]["Plan"])


@pytest.fixture
def rows(engine):
    """Run a named statement on the test's database."""

    async def run(name: str, *arguments: Any) -> list[Any]:
        return await engine.database.fetch(sql(name), *arguments)

    return run
