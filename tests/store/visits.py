"""How many rows a statement looks at: what it cost, whatever the machine is doing beside it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from tests.store.test_plans import Node

from holdfast.store.database import Database
from holdfast.store.statements import sql


async def visits(database: Database, name: str, *literals: str) -> Counter[str]:
    """Rows that a statement looks at in each table, partitions together; a look that finds none counts as one. What it
    changes is taken back."""
    async with database.session() as session:
        transaction = session.connection.transaction()
        await transaction.start()
        try:
            return _counted(await _analysed(session, name, literals))
        finally:
            await transaction.rollback()


async def _analysed(session: Any, name: str, literals: tuple[str, ...]) -> Node:
    """The generic plan: the one a worker's prepared statement ends up with."""
    await session.execute("set local plan_cache_mode = force_generic_plan")
    await session.execute(f"prepare visiting as {sql(name)}")
    execute = f"execute visiting ({', '.join(literals)})" if literals else "execute visiting"
    plan = json.loads(await session.fetchval(f"explain (analyze, timing off, format json) {execute}"))
    await session.execute("deallocate visiting")
    return Node(plan[0]["Plan"])


def _counted(plan: Node) -> Counter[str]:
    found: Counter[str] = Counter()
    for node in plan.walk():
        if node["Node Type"] == "ModifyTable" or "Relation Name" not in node:
            continue
        rows = node["Actual Rows"] + sum(rows for key, rows in node.items() if key.startswith("Rows Removed"))
        table, _, number = node["Relation Name"].rpartition("_")
        looked = round(max(1, rows) * node["Actual Loops"])
        found[table if number.isdigit() else node["Relation Name"]] += looked
    return found
