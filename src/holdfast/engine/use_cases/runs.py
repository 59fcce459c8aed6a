"""Use cases of runs: start, cancel, pause, resume and retry them, answer approvals, and send signals.

Clients, operations and tests call these functions. Each runs the transactions of its verb and then publishes what was
committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.codec import json_codec
from holdfast.core.flows.bindings import accept_run_input
from holdfast.core.flows.nodes import FlowInput
from holdfast.core.values import bounds
from holdfast.core.values.bounds import no_run
from holdfast.engine.engine import Engine
from holdfast.engine.idempotency import IdempotentRequest
from holdfast.engine.lifecycle.runs import approvals, commands, pause, signals
from holdfast.engine.lifecycle.runs.approvals import ApprovalAnswered
from holdfast.engine.lifecycle.runs.redrive import Redriven
from holdfast.engine.lifecycle.runs.signals import Sent
from holdfast.engine.lifecycle.runs.start import RunOptions, start, start_within
from holdfast.engine.publish import publish_and_propagate
from holdfast.errors import Invalid
from holdfast.store.catalog import Catalog
from holdfast.store.database import Session
from holdfast.store.flow_definitions import FlowSnapshot
from holdfast.store.sql.queries import runs as runs_sql


def encode_run_inputs(
    engine: Engine, declared: Sequence[FlowInput], inputs: Iterable[Mapping[str, Any]], key: str | None
) -> list[bytes]:
    """Check the inputs of runs against the inputs that their flow declares, and encode them. A key allows one run."""
    accepted = [accept_run_input(declared, given) for given in inputs]
    encoded = json_codec.encode_many(accepted, bytes_max=engine.settings.limits.input_bytes_max, what="input")
    if key is not None:
        bounds.valid_key(key)
        if len(encoded) != 1:
            raise Invalid(
                "One key cannot stand for many runs.", code="invalid_key", advice="Start keyed runs one by one."
            )
    return encoded


async def start_runs(
    engine: Engine, snapshot: FlowSnapshot, inputs: Sequence[bytes], options: RunOptions
) -> Sequence[int]:
    """Start one run per input, or none; with a key, return the one run that the key belongs to."""
    run_ids, notifications = await start(engine.database, engine.catalog, snapshot, inputs, options)
    await publish_and_propagate(engine, notifications)
    return run_ids


async def start_runs_in(
    session: Session, catalog: Catalog, snapshot: FlowSnapshot, inputs: Sequence[bytes], options: RunOptions
) -> Sequence[int]:
    """Start one run per input in the transaction open on `session`. The caller notifies workers after its commit."""
    await catalog.allowance.require(snapshot.tenant_id, len(inputs), key=options.key, session=session)
    run_ids, _ = await start_within(session, catalog, snapshot, inputs, options)
    return run_ids


async def start_declared(
    engine: Engine, flow: str, input: Mapping[str, Any], options: RunOptions, *, version: int | None = None
) -> int:
    """Start one run of a flow that a worker declared: its newest version, or the given one."""
    snapshot = await engine.catalog.flows.newest(engine.tenant_id, flow, version)
    encoded = encode_run_inputs(engine, snapshot.plan.inputs, [input], options.key)
    [run_id] = await start_runs(engine, snapshot, encoded, options)
    return run_id


async def copy_run(engine: Engine, run_id: int, changed: Mapping[str, Any], options: RunOptions) -> int:
    """Start a run of the same snapshot as another one, linked to it, with `changed` input and other `options`."""
    async with engine.database.session() as session:
        row = await runs_sql.read_run_for_copy(session, run_id, engine.tenant_id)
        if row is None:
            raise no_run(run_id)
        await engine.catalog.flows.learn([row.snapshot_id], session)
    options = replace(
        options,
        max_active=row.max_active if options.max_active is None else options.max_active,
        priority=row.priority if options.priority is None else options.priority,
        tags=options.tags or tuple(row.tags or ()),
        original_run_id=run_id,
    )
    snapshot = engine.catalog.flows.snapshot(row.snapshot_id)
    copied = {**json_codec.decode(row.input), **changed}
    encoded = encode_run_inputs(engine, snapshot.plan.inputs, [copied], options.key)
    [copy_id] = await start_runs(engine, snapshot, encoded, options)
    return copy_id


async def cancel_run(
    engine: Engine, run_id: int, *, actor: str, reason: str = "", grace_seconds: float | None = None
) -> None:
    """Cancel a run: release nothing more, end what waits, and ask running tasks to stop."""
    grace = engine.settings.worker.cancel_grace_seconds if grace_seconds is None else grace_seconds
    notifications = await commands.cancel_run(
        engine.database, engine.catalog, engine.tenant_id, run_id, actor=actor, reason=reason, grace_seconds=grace
    )
    await publish_and_propagate(engine, notifications)


async def pause_run(engine: Engine, run_id: int, *, actor: str, reason: str = "") -> None:
    """Stop releasing nodes of a run, and of the runs it started, until it is resumed."""
    await pause.pause_run(engine.database, engine.tenant_id, run_id, actor=actor, reason=reason)


async def resume_run(engine: Engine, run_id: int, *, actor: str, reason: str = "") -> None:
    """Resume a paused run and the runs that were paused with it."""
    notifications = await pause.resume_run(
        engine.database, engine.catalog, engine.tenant_id, run_id, actor=actor, reason=reason
    )
    await publish_and_propagate(engine, notifications)


async def retry_run(
    engine: Engine,
    run_id: int,
    *,
    actor: str,
    reason: str = "",
    only: str | None = None,
    once: IdempotentRequest | None = None,
    answer: Callable[[Redriven], Any] = lambda done: done,
) -> Redriven:
    """Run the failed nodes of a run again (or `only` one node), with everything downstream of them."""
    done = await commands.retry_run(
        engine.database,
        engine.catalog,
        engine.tenant_id,
        run_id,
        actor=actor,
        reason=reason,
        only=only,
        once=once,
        answer=answer,
    )
    await publish_and_propagate(engine, done.notifications)
    return done


async def answer_approval(
    engine: Engine, run_id: int, node: str, *, is_given: bool, actor: str, reason: str = ""
) -> ApprovalAnswered:
    """Approve or reject one node, once."""
    done = await approvals.answer_approval(
        engine.database,
        engine.catalog,
        engine.tenant_id,
        run_id,
        node,
        is_given=is_given,
        actor=actor,
        reason=reason,
    )
    await publish_and_propagate(engine, done.notifications)
    return done


async def send_signal(
    engine: Engine, name: str, payload: Any, *, key: str | None = None, run_id: int | None = None, actor: str
) -> None:
    """Send an event from code to every run that waits, or will wait, for it; or to one run only."""
    wait_key, encoded = _event(engine, name, key, payload)
    notifications = await signals.send_signal(
        engine.database, engine.catalog, engine.tenant_id, wait_key, encoded, run_id=run_id, actor=actor
    )
    await publish_and_propagate(engine, notifications)


async def send_operator_signal(
    engine: Engine,
    name: str,
    payload: Any,
    *,
    key: str | None = None,
    run_id: int | None = None,
    actor: str,
    reason: str = "",
    once: IdempotentRequest | None = None,
) -> Sent:
    """Send an event for an operator like `send_signal`, audit it, and return the nodes that waited for it."""
    wait_key, encoded = _event(engine, name, key, payload)
    sent, notifications = await signals.send_by_hand(
        engine.database,
        engine.catalog,
        engine.tenant_id,
        wait_key,
        encoded,
        run_id=run_id,
        actor=actor,
        reason=reason,
        once=once,
    )
    await publish_and_propagate(engine, notifications)
    return sent


def _event(engine: Engine, name: str, key: str | None, payload: Any) -> tuple[str, bytes]:
    """Return the key that waits name, and the encoded payload."""
    wait_key = bounds.valid_key(name if key is None else f"{name}:{key}")
    return wait_key, json_codec.encode(payload, bytes_max=engine.settings.limits.input_bytes_max, what="input")
