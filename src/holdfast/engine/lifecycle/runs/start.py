"""Start runs of a flow, one or thousands, each with its own input.

One transaction takes the ids of a run and inserts its row and its first tasks, so no run exists that cannot advance. If
the first nodes of a flow are all plain tasks, one statement starts any number of runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import Node, NodeKind
from holdfast.core.flows.plan import Plan
from holdfast.core.tasks.action_rules import ActionRules
from holdfast.core.tasks.policy import RetryPolicy
from holdfast.engine.lifecycle.runs.locked_run import lock_runs
from holdfast.engine.lifecycle.runs.release import advance
from holdfast.engine.lifecycle.tasks.enqueue import key_is_moving
from holdfast.engine.notifications import NO_NOTIFICATIONS, Notifications
from holdfast.errors import Conflict, Unavailable
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database, Session
from holdfast.store.flow_definitions import FlowSnapshot
from holdfast.store.session import first
from holdfast.store.sql.flows import runs as runs_sql
from holdfast.store.sql.tasks import enqueue as enqueue_sql

_REPEATS_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options in which one start may differ from its flow."""

    max_active: int | None = None
    priority: int | None = None
    tags: tuple[str, ...] = ()
    key: str | None = None
    parent_run_id: int | None = None
    parent_node: int | None = None
    original_run_id: int | None = None


async def snapshot_of(
    catalog: Catalog,
    tenant_id: int,
    definition: FlowDefinition,
    actions: Mapping[str, ActionRules],
    children: Mapping[str, FlowSnapshot] = MappingProxyType({}),
) -> FlowSnapshot:
    """Store a validated flow and intern it with the current rules of its nodes. Call it outside any transaction.

    `actions` has the rules of every action, `children` a snapshot of every flow that its nodes name.
    """
    plan = Plan.of(definition)
    flow_id = await catalog.flows.keep(tenant_id, definition, plan)
    lane_ids: list[int] = []
    policy_ids: list[int] = []
    priorities: list[int] = []
    child_ids: list[int] = []
    known: dict[tuple[Any, ...], tuple[int, int]] = {}
    for node in definition.nodes:
        child_ids.append(children[node.action].snapshot_id if node.kind is NodeKind.FLOW else 0)
        if node.kind not in (NodeKind.TASK, NodeKind.MAP):
            lane_ids.append(0)
            policy_ids.append(0)
            priorities.append(0)
            continue
        rules = actions[node.action]
        alike = (node.action, node.queue, node.timeout_seconds, node.max_retries)
        if alike not in known:
            lane_id = await catalog.lane_id(tenant_id, node.queue or rules.queue, node.action)
            known[alike] = (lane_id, await catalog.policy_id(tenant_id, _policy_of(node, rules)))
        lane_id, policy_id = known[alike]
        lane_ids.append(lane_id)
        policy_ids.append(policy_id)
        priorities.append(rules.priority if node.priority is None else node.priority)
    return await catalog.flows.intern(tenant_id, flow_id, plan, lane_ids, policy_ids, priorities, child_ids)


def _policy_of(node: Node, rules: ActionRules) -> RetryPolicy:
    overrides: dict[str, Any] = {
        name: value
        for name, value in (("timeout_seconds", node.timeout_seconds), ("max_retries", node.max_retries))
        if value is not None
    }
    return replace(rules.policy, **overrides).validated()


async def start(
    database: Database, catalog: Catalog, snapshot: FlowSnapshot, inputs: Sequence[bytes], options: RunOptions
) -> tuple[list[int], Notifications]:
    """Start one run per input, or none; with a key, return the one run that the key belongs to.

    With a key the start is repeated after a broken connection: a key that was accepted is found, and no second run
    starts.
    """
    await catalog.allowance.require(snapshot.tenant_id, len(inputs), key=options.key)
    for repeats_left in reversed(range(1 if options.key is None else _REPEATS_MAX)):
        try:
            async with database.transaction() as session:
                return await start_within(session, catalog, snapshot, inputs, options)
        except Unavailable:
            if not repeats_left:
                raise
    raise AssertionError("unreachable")


async def start_within(
    session: Session, catalog: Catalog, snapshot: FlowSnapshot, inputs: Sequence[bytes], options: RunOptions
) -> tuple[list[int], Notifications]:
    """Start runs in the caller's transaction."""
    if options.key is None:
        return await start_runs(session, catalog, snapshot, inputs, options)
    [encoded] = inputs
    run_id, notifications = await _start_keyed(session, catalog, snapshot, encoded, options)
    return [run_id], notifications


async def _start_keyed(
    session: Session, catalog: Catalog, snapshot: FlowSnapshot, encoded: bytes, options: RunOptions
) -> tuple[int, Notifications]:
    # No action can have this name, so the key of a task never matches the key of a run. The flow version is left out: a
    # repeated request matches even if the flow has changed since.
    asked = f"flow {snapshot.plan.name}"
    tenant_id, key = snapshot.tenant_id, options.key
    assert key is not None
    # The run of a key may be deleted after the key was found and before it is read. The key is then free again, so the
    # start is repeated.
    for _ in range(_REPEATS_MAX):
        run_id = await runs_sql.claim_run_key(session, tenant_id, key, len(snapshot.plan.nodes), asked, encoded)
        if run_id is not None:
            [run_id], notifications = await start_runs(session, catalog, snapshot, [encoded], options, first_id=run_id)
            return run_id, notifications
        row = first(await enqueue_sql.find_keys(session, tenant_id, [key], [encoded], asked))
        if row is not None:
            break
    else:
        raise key_is_moving()
    if not row.is_same:
        raise Conflict(
            f"The key {key!r} already stands for {row.task_id}: another input, another flow, or a task.",
            code="idempotency_key_reused",
            advice="Use a new key for a new run.",
            run_id=str(row.task_id),
        )
    return row.task_id, NO_NOTIFICATIONS


async def start_runs(
    session: Session,
    catalog: Catalog,
    snapshot: FlowSnapshot,
    inputs: Sequence[bytes],
    options: RunOptions,
    *,
    first_id: int | None = None,
) -> tuple[list[int], Notifications]:
    """Start one run per input in the caller's transaction. Return the run ids and the notifications to send after the
    commit.

    `first_id` begins a span of ids that the caller reserved for them.
    """
    plan = snapshot.plan
    is_plain = options.max_active is None and all(plan.is_simple[node_no] for node_no in plan.roots)
    roots = plan.roots if is_plain else ()
    await catalog.learn((), {snapshot.policy_ids[node_no] for node_no in roots}, session=session)
    policies = [catalog.policy(snapshot.policy_ids[node_no]) for node_no in roots]
    run_ids = await runs_sql.start_runs(
        session,
        snapshot.tenant_id,
        snapshot.snapshot_id,
        len(plan.nodes),
        list(inputs),
        options.max_active,
        options.priority,
        list(options.tags) or None,
        options.key,
        options.parent_run_id,
        options.parent_node,
        list(roots),
        [snapshot.lane_ids[node_no] for node_no in roots],
        [snapshot.policy_ids[node_no] for node_no in roots],
        [snapshot.priorities[node_no] if options.priority is None else options.priority for node_no in roots],
        [policy.max_retries for policy in policies],
        [policy.max_losses for policy in policies],
        options.original_run_id,
        first_id,
    )
    if is_plain:
        return run_ids, Notifications({snapshot.lane_ids[node_no] for node_no in roots}, [], [])
    runs = await lock_runs(session, catalog, run_ids)
    for run in runs:
        run.progress.ready = list(plan.roots)
    return run_ids, await advance(session, catalog, runs)
