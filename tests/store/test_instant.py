"""`instant()` is inlined, also when a test moved it: a comparison with it stays an index condition."""

from __future__ import annotations

DUE = """
    explain select task_id from holdfast.live
    where state = 'w' and due_at <= holdfast.instant() order by due_at limit 1
"""


async def index_condition(engine) -> str:
    lines = [row[0].strip() for row in await engine.database.fetch(DUE)]
    return next(line for line in lines if line.startswith("Index Cond"))


async def test_the_databases_own_time_is_inlined(engine):
    assert "due_at <= statement_timestamp()" in await index_condition(engine)


async def test_a_moved_time_is_inlined(engine, clock):
    await clock.advance("1h")
    assert "due_at <= (statement_timestamp() + " in await index_condition(engine)
