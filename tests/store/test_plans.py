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
from holdfast.testing.run_coroutine import run_coroutine

HOT = [
    "enqueue",
    "enqueue_one",
    "enqueue_copy",
    "enqueue_keyed",
    "read_task_to_copy",
    "lane_heads",
    "claim",
    "claim_task",
    "held_by",
    "settle_completed",
    "settle_incomplete",
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
    "store_step",
    "read_events",
    "read_run_events",
    "count_events",
    "start_runs",
    "lock_runs",
    "lock_run",
    "read_nodes",
    "advance_runs",
    "store_node_counts",
    "read_runs",
    "read_outputs",
    "read_taskless_outputs",
    "held_nodes",
    "begin_items",
    "count_items",
    "further_items",
    "release_items",
    "unreleased_items",
    "cancel_waits",
    "run_tasks_to_cancel",
    "waiting_node",
    "read_signal",
    "last_wait_of_page",
    "answered_waits",
]
PASSES = {
    "canceling_runs": {"run_stopping"},
    "children_to_cancel": {"run_stopping", "run_replaced"},
    "children_to_hold": {"run_paused"},
    "children_to_free": {"run_paused"},
    "stalled_items": {"run_again"},
    "unanswered_children": {"run_unanswered"},
    "wanted_children": {"run_wanted"},
    "overdue_waits": set(),
    "open_runs_below": set(),
    "delete_old_events": set(),
    "delete_old_signals": {"signal_pkey", "run_open", "run"},
}
"""What is asked again and again whether or not there is anything to do, with the indexes it may go along: those hold
nothing but what there is to do, or are left at the first row. Open runs are looked through only for old signals."""
TASKS = 20_000
RUNS = 2_000
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
    insert into holdfast.flow (tenant_id, name, version, digest, definition, nodes, upstreams, downstreams)
    values (1, 'ship', 1, '', '{{}}', 10, '{{}}', '{{}}');
    insert into holdfast.snapshot (tenant_id, flow_id, digest, lane_ids, policy_ids, priorities, child_ids)
    values (1, 1, '', '{{}}', '{{}}', '{{}}', '{{}}');
    insert into holdfast.run (run_id, tenant_id, snapshot_id, nodes, pending, active, input)
    select holdfast.take_span(11), 1, 1, 10, 10, 0, '{{}}' from generate_series(1, {RUNS});
    update holdfast.run set parent_run_id = run_id - 11, parent_node = 0 where run_id % 2 = 0;
    insert into holdfast.node (
      run_id, node_no, tenant_id, state, wait_key, deadline, items_first, items, items_next, items_pending
    )
    select r.run_id, n.node_no, 1, n.state, case n.state when 'w' then 'paid:' || r.run_id end,
      case n.state when 'w' then now() end,
      case n.state when 'm' then r.run_id * 9 end, case n.state when 'm' then 9 end, case n.state when 'm' then 0 end,
      case n.state when 'm' then 9 end
    from holdfast.run r
    cross join unnest('{{b,h,r,k,w,m,r,r,r,r}}'::"char"[]) with ordinality as n (state, node_no);
    insert into holdfast.signal (tenant_id, wait_key, payload)
    select 1, 'paid:' || n, '' from generate_series(1, {TASKS}) as n;
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
        found = {name: await explain(session, name) for name in (*HOT, *PASSES)}
    await database.close()
    return found


_PLANNED: dict[str, dict[str, Node]] = {}
"""What was planned before: the tests of one kind of statistics do not follow one another."""


def planned_with(databases, statistics):
    if statistics not in _PLANNED:
        url = run_coroutine(databases.create())
        _PLANNED[statistics] = run_coroutine(plans(url, STATISTICS[statistics]))
        run_coroutine(databases.drop(url))
    return _PLANNED[statistics]


@pytest.fixture(params=STATISTICS)
def planned(request, holdfast_databases):
    return planned_with(holdfast_databases, request.param)


@pytest.fixture(params=[name for name in STATISTICS if not name.startswith("empty")])
def planned_beside_runs(request, holdfast_databases):
    """What was planned before there was any run is planned anew when there are: they do not come and go like tasks."""
    return planned_with(holdfast_databases, request.param)


def tables_read(plan):
    """The tables, and partitions of them, that a plan reads from end to end."""
    return {node["Relation Name"].split("_")[0] for node in plan.walk() if node["Node Type"] == "Seq Scan"}


@pytest.mark.representative(one_in=4)
@pytest.mark.xdist_group("plans")
@pytest.mark.parametrize("name", HOT)
def test_no_hot_table_is_read_from_end_to_end(planned, name):
    assert not tables_read(planned[name]) & {"live", "body", "attempt", "effect", "step", "event", "signal"}


@pytest.mark.xdist_group("plans")
@pytest.mark.parametrize("name", HOT)
def test_neither_runs_nor_nodes_are_read_from_end_to_end(planned_beside_runs, name):
    assert not tables_read(planned_beside_runs[name]) & {"run", "node"}


@pytest.mark.xdist_group("plans")
@pytest.mark.parametrize("name", HOT)
def test_every_index_is_entered_by_its_key(planned, name):
    indexes = [node for node in planned[name].walk() if "Index Name" in node]
    assert not [node["Index Name"] for node in indexes if "Index Cond" not in node]


@pytest.mark.xdist_group("plans")
def test_a_claim_goes_along_its_lane_and_not_past_the_tasks_of_others(planned):
    assert "live_queued" in [node.get("Index Name") for node in planned["claim"].walk()]


@pytest.mark.xdist_group("plans")
@pytest.mark.parametrize("name", PASSES)
def test_a_pass_goes_along_what_there_is_to_do(planned_beside_runs, name):
    plan = planned_beside_runs[name]
    assert tables_read(plan) & {"live", "event", "run", "node", "signal"} <= PASSES[name]
    indexes = [node for node in plan.walk() if "Index Name" in node]
    assert {node["Index Name"] for node in indexes if "Index Cond" not in node} <= PASSES[name]


@pytest.mark.xdist_group("plans")
@pytest.mark.parametrize(("name", "state"), [("held_nodes", "h"), ("cancel_waits", "w"), ("unreleased_items", "m")])
def test_nodes_of_a_state_are_found_by_it(planned_beside_runs, name, state):
    reads = [node for node in planned_beside_runs[name].walk() if "Index Name" in node]
    assert reads and all(f"state = '{state}'" in node["Index Cond"] for node in reads)


@pytest.mark.xdist_group("plans")
def test_a_look_finds_every_head_in_its_lane(planned):
    """The oldest task, that of the next priority, and the oldest node behind plain tasks: each is one probe."""
    probes = [node for node in planned["lane_heads"].walk() if node.get("Relation Name") == "live"]
    assert [node["Index Name"] for node in probes] == ["live_queued"] * 3
    assert all("lane_id = " in node["Index Cond"] for node in probes)
    assert ">= ROW" in probes[-1]["Index Cond"], "past the plain tasks at once"
