"""Hot statements reach rows by key, whatever the statistics say about the hot table.

A queue turns over faster than statistics follow: the table is analysed while empty, full of queued or full of running
tasks, or never. A statement whose plan depends on that is fast in a test and slow on a bad day.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.store.database import Database
from holdfast.store.statements import sql
from holdfast.testing.apart import run_apart

HOT = [
    "enqueue",
    "enqueue_one",
    "enqueue_copy",
    "enqueue_keyed",
    "copied_task",
    "heads",
    "claim",
    "claim_task",
    "held_by",
    "settle_completed",
    "settle_otherwise",
    "find_settled",
    "find_winner",
    "heartbeat",
    "expired",
    "reserve",
    "attach",
    "promote",
    "next_due",
    "cancel",
    "await_tasks",
    "results",
    "which_exist",
    "add_notes",
    "unclaimed_lanes",
    "take_hints",
    "find_hinted",
    "tally_outcomes",
    "windows",
    "admit_retries",
    "postpone_retries",
    "lock_quotas",
    "open_effect",
    "answer_effect",
    "recall_steps",
    "keep_step",
    "read_events",
    "read_run_events",
    "count_events",
]
TASKS = 20_000
FILL = f"""
    insert into holdfast.queue (tenant_id, name) values (1, 'default');
    insert into holdfast.lane (tenant_id, queue_id, action) values (1, 1, 'shop.charge');
    insert into holdfast.policy (tenant_id, digest, max_retries, max_losses, content) values (1, '', 3, 3, '{{}}');
    insert into holdfast.worker (name, actions, slots) values ('first', '{{shop.charge}}', 100000);
    insert into holdfast.body (task_id, created_at, tenant_id, lane_id, policy_id, priority, input)
    select nextval('holdfast.task_id'), now(), 1, 1, 1, 5, '{{}}' from generate_series(1, {TASKS});
    insert into holdfast.live (task_id, tenant_id, lane_id, policy_id, priority, max_retries, max_losses, state)
    select task_id, 1, 1, 1, 5, 3, 3, 'q' from holdfast.body;
    insert into holdfast.attempt (task_id, started_at, ended_at, attempt, tenant_id, state, lease_token)
    select task_id, now(), now(), 1, 1, 'e', gen_random_uuid() from holdfast.body;
    insert into holdfast.effect (tenant_id, key, task_id, attempt, ordinal, generation, lease_token, name, digest)
    select 1, task_id::text, task_id, 1, 0, 1, gen_random_uuid(), 'smtp.send', '' from holdfast.body;
    insert into holdfast.step (task_id, tenant_id, attempt, generation, name, digest, output)
    select task_id, 1, 1, 1, 'page', '', '' from holdfast.body;
    insert into holdfast.event (tenant_id, kind, task_ids, attempts)
    select 1, 'task.started', array[task_id], '{{1}}' from holdfast.body;
    update holdfast.live set attempt = 1
"""
RUN = """
    update holdfast.live
    set state = 'r', attempt = 2, worker_id = 1, lease_token = gen_random_uuid(), started_at = now(),
      lease_expires_at = now() + interval '1 minute'
"""
STATISTICS = {
    "analysed_while_empty": f"analyze; {FILL}",
    "analysed_while_all_queued": f"{FILL}; analyze",
    "analysed_while_all_running": f"{FILL}; {RUN}; vacuum holdfast.live; analyze",
    "never_analysed": FILL,
    "empty_and_never_analysed": "select 1",
}


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
    "boolean[]": "'{true}'",
    "boolean": "true",
    "bytea": "'x'",
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


async def plans(url, script):
    database = await Database(url, sessions_max=1).open()
    async with database.session() as session:
        for statement in script.split(";"):
            await session.execute(statement)
        found = {name: await explain(session, name) for name in HOT}
    await database.close()
    return found


_PLANNED: dict[str, dict[str, Node]] = {}
"""What was planned before: the tests of one kind of statistics do not follow one another."""


@pytest.fixture(params=STATISTICS)
def planned(request, holdfast_databases):
    if request.param not in _PLANNED:
        url = run_apart(holdfast_databases.create())
        _PLANNED[request.param] = run_apart(plans(url, STATISTICS[request.param]))
        run_apart(holdfast_databases.drop(url))
    return _PLANNED[request.param]


def is_hot(node):
    return node.get("Relation Name", "").split("_")[0] in ("live", "body", "attempt", "effect", "step", "event")


@pytest.mark.xdist_group("plans")
@pytest.mark.parametrize("name", HOT)
def test_no_hot_table_is_read_from_end_to_end(planned, name):
    read = [node["Relation Name"] for node in planned[name].walk() if node["Node Type"] == "Seq Scan" and is_hot(node)]
    assert not read


@pytest.mark.xdist_group("plans")
@pytest.mark.parametrize("name", HOT)
def test_every_index_is_entered_by_its_key(planned, name):
    indexes = [node for node in planned[name].walk() if "Index Name" in node]
    assert not [node["Index Name"] for node in indexes if "Index Cond" not in node]


@pytest.mark.xdist_group("plans")
def test_a_claim_goes_along_its_lane_and_not_past_the_tasks_of_others(planned):
    assert "live_queued" in [node.get("Index Name") for node in planned["claim"].walk()]


@pytest.mark.xdist_group("plans")
def test_a_look_finds_every_head_in_its_lane(planned):
    """The oldest task, that of the next priority, and the oldest node behind plain tasks: each is one probe."""
    probes = [node for node in planned["heads"].walk() if node.get("Relation Name") == "live"]
    assert [node["Index Name"] for node in probes] == ["live_queued"] * 3
    assert [node["Index Cond"].count("lane_id = ") + node["Index Cond"].count(">= ROW") for node in probes] == [1] * 3
