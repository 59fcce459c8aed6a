"""What a worker holds is found by its own number, however much others hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.bench.test_looks import read

from holdfast.store.statements import sql
from holdfast.testing import factories as a

OTHERS = 3_000
_OTHERS = f"""
insert into holdfast.live (task_id, tenant_id, lane_id, policy_id, priority, max_retries, max_losses, state, attempt,
  worker_id, lease_token, started_at, lease_expires_at)
select 1000 + n, t.tenant_id, t.lane_id, t.policy_id, 5, 3, 3, 'r', 1, 1000 + n % 100, gen_random_uuid(), now(),
  now() + interval '1 hour'
from holdfast.live t
cross join generate_series(1, {OTHERS}) n
"""
HELD: list[tuple[str, tuple[Any, ...]]] = [
    ("held_unnamed", ([], 60.0, 1_000)),
    ("held_by", ([], 60.0, 1_000, [])),
    ("show_worker", (1_000,)),
]


@pytest.mark.parametrize(("name", "asked"), HELD, ids=lambda one: one if isinstance(one, str) else "")
async def test_what_one_worker_holds_is_found_without_what_others_hold(harness, name, asked):
    own = await a.a_running_task(harness)
    worker_id = await harness.engine.database.fetchval("select worker_id from holdfast.live")
    async with harness.engine.database.transaction() as session:
        await session.execute(_OTHERS)
        rows = await session.fetch(sql(name), worker_id, *asked)
        found = await session.fetchval(f"explain (analyze, format json, timing off) {sql(name)}", worker_id, *asked)
        await session.execute("delete from holdfast.live where task_id > 1000")

    assert [str(row["task_id"]) for row in rows] == [own.task_id]
    most = max(read(json.loads(found)[0]["Plan"]))
    assert most[0] <= 10, most
