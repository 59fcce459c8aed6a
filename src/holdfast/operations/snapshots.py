"""Snapshots of tasks: the input of a task and how an attempt ended, for a replay elsewhere."""

from __future__ import annotations

import msgspec

from holdfast.codec import json_codec
from holdfast.core.identity.access import Access
from holdfast.core.tasks.replay import Receipt, Recorded
from holdfast.core.values import bounds
from holdfast.engine.effects.steps import StoredStep
from holdfast.engine.queries import task_snapshot
from holdfast.engine.queries.task_snapshot import Captured
from holdfast.operations.context import OperationContext
from holdfast.operations.operation import Request, operation
from holdfast.store.catalog import Lane


class ReadSnapshot(Request, frozen=True, kw_only=True):
    """With `effect` and `key`, the snapshot includes the receipt under that key, whichever task sent the effect."""

    task_id: str
    attempt: int | None = None
    effect: str | None = None
    key: str | None = None


class RecordedEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended when it ran."""

    attempt: int
    state: str
    code: str
    type: str
    message: str
    traceback: str
    output: msgspec.Raw


class RecordedReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded answer to an effect, a receipt or a refusal, and the task that sent it.

    `digest` identifies its arguments.
    """

    task_id: str
    effect: str
    user_key: str | None
    ordinal: int
    digest: str
    state: str
    receipt: msgspec.Raw
    code: str
    message: str


class RecordedStep(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a step, in the generation of the attempt. `digest` identifies its arguments."""

    name: str
    digest: str
    output: msgspec.Raw


class TaskSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The input and properties of a task, for a replay elsewhere, and the attempt to compare with."""

    task_id: str
    run_id: str | None
    action: str
    queue: str
    tenant: str
    tags: list[str]
    input: msgspec.Raw
    recorded: RecordedEnd | None
    receipts: list[RecordedReceipt] = []
    steps: list[RecordedStep] = []


@operation("task.snapshot", "GET /api/v1/tasks/{task_id}/snapshot", Access.OPERATOR, commands=("task replay",))
async def snapshot_task(context: OperationContext, request: ReadSnapshot) -> TaskSnapshot:
    """Returns the input of a task and how an attempt of it ended, for a replay elsewhere."""
    number = bounds.task_number(request.task_id)
    also = None if request.effect is None or request.key is None else (request.effect, request.key)
    here = (context.database, context.engine.catalog, context.tenant_id, number)
    captured = await task_snapshot.capture(*here, attempt=request.attempt, also=also)
    recorded = None
    if (end := captured.recorded) is not None:
        recorded = RecordedEnd(
            attempt=end.attempt,
            state=end.state,
            code=end.code,
            type=end.type,
            message=end.message,
            traceback=end.traceback,
            output=json_codec.NULL if end.output is None else msgspec.Raw(end.output),
        )
    return TaskSnapshot(
        task_id=str(captured.task_id),
        run_id=None if captured.run_id is None else str(captured.run_id),
        action=captured.lane.action,
        queue=captured.lane.queue,
        tenant=captured.lane.tenant,
        tags=list(captured.tags),
        input=msgspec.Raw(captured.input),
        recorded=recorded,
        receipts=[_receipt(receipt) for receipt in captured.receipts],
        steps=[
            RecordedStep(name=step.name, digest=step.digest.hex(), output=msgspec.Raw(step.output))
            for step in captured.steps
        ],
    )


def _receipt(known: Receipt) -> RecordedReceipt:
    return RecordedReceipt(
        task_id=known.task_id,
        effect=known.effect,
        user_key=known.user_key,
        ordinal=known.ordinal,
        digest=known.digest.hex(),
        state=known.state,
        receipt=json_codec.NULL if known.receipt is None else msgspec.Raw(known.receipt),
        code=known.code,
        message=known.message,
    )


def captured_of(snapshot: TaskSnapshot) -> Captured:
    """Convert a snapshot to the form that a replay takes."""
    end = snapshot.recorded
    recorded = None
    if end is not None:
        known = {name: getattr(end, name) for name in end.__struct_fields__ if name != "output"}
        recorded = Recorded(**known, output=bytes(end.output) if end.state == "completed" else None)
    return Captured(
        task_id=int(snapshot.task_id),
        run_id=None if snapshot.run_id is None else int(snapshot.run_id),
        lane=Lane(0, snapshot.action, snapshot.queue, snapshot.tenant),
        input=bytes(snapshot.input),
        tags=tuple(snapshot.tags),
        recorded=recorded,
        receipts=tuple(
            Receipt(
                task_id=recorded_receipt.task_id,
                effect=recorded_receipt.effect,
                user_key=recorded_receipt.user_key,
                ordinal=recorded_receipt.ordinal,
                digest=bytes.fromhex(recorded_receipt.digest),
                state=recorded_receipt.state,
                receipt=bytes(recorded_receipt.receipt) if recorded_receipt.state == "done" else None,
                code=recorded_receipt.code,
                message=recorded_receipt.message,
            )
            for recorded_receipt in snapshot.receipts
        ),
        steps=tuple(StoredStep(step.name, bytes.fromhex(step.digest), bytes(step.output)) for step in snapshot.steps),
    )


OPERATIONS = (snapshot_task,)
