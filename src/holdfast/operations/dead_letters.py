"""Operations on dead letters: list them by group or in pages, show, re-drive, dismiss, delete and export them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from holdfast.core.dead_letters.dead_letter import DISPATCHES_MAX
from holdfast.core.identity.access import Access
from holdfast.core.values import bounds
from holdfast.engine.campaigns.plan import RepeatedEffect, group_effects
from holdfast.engine.effects.gate import EffectView
from holdfast.engine.lifecycle.dead_letters import commands as dead_letter_commands
from holdfast.engine.lifecycle.dead_letters.commands import DeadLettersMoved
from holdfast.engine.lifecycle.dead_letters.requeue import Requeued
from holdfast.engine.lifecycle.tasks import delete
from holdfast.engine.lifecycle.tasks.delete import Deleted
from holdfast.engine.queries import dead_letters
from holdfast.engine.queries.dead_letters import UNRESOLVED, DeadLetterView, GroupView
from holdfast.engine.queries.pages import moment_of, younger
from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.operations.context import OperationContext
from holdfast.operations.operation import KeyUse, Request, operation
from holdfast.operations.paging import PAGE, ROWS_MAX, Limit, rows_of, words


class ListGroups(Request, frozen=True, kw_only=True):
    """A request without fields."""


class GroupPage(msgspec.Struct, frozen=True, kw_only=True):
    """The largest groups, at most 200."""

    groups: list[GroupView]


class ListDeadLetters(Request, frozen=True, kw_only=True):
    """Filters; by default only unresolved dead letters are listed. `before` is the `next` of the previous page."""

    state: list[str] = msgspec.field(default_factory=list)
    everything: bool = False
    fingerprint: str | None = None
    task_id: str | None = None
    since: str | None = None
    before: str | None = None
    limit: Limit = PAGE


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    letters: list[DeadLetterView]
    next: str | None


class DeadLetterRequest(Request, frozen=True, kw_only=True):
    dead_letter_id: str


class RedriveTask(Request, frozen=True, kw_only=True):
    """A task, and the reason why it will work now. `dispatches` limits how often a failing task is dispatched."""

    task_id: str
    reason: str
    dispatches: Annotated[int, msgspec.Meta(ge=1, le=DISPATCHES_MAX)] = DISPATCHES_MAX


class TaskRedriven(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt that will run, and the task's earlier effects.

    `unknown_effects` may have happened already and are sent again under the same keys. `undone_effects` were
    compensated; requested again under their keys, they fail.
    """

    task_id: str
    dead_letter_id: str | None
    state: str
    attempt: int
    unknown_effects: list[EffectView]
    undone_effects: list[EffectView]


class RedriveGroup(Request, frozen=True, kw_only=True):
    """A group, and the reason why it will work now. `dispatches` limits how often a failing task is dispatched."""

    fingerprint: str
    reason: str
    dispatches: Annotated[int, msgspec.Meta(ge=1, le=DISPATCHES_MAX)] = DISPATCHES_MAX


class GroupRedriven(msgspec.Struct, frozen=True, kw_only=True):
    """How many dead letters will be retried, and the effects of their tasks."""

    fingerprint: str
    letters: int
    state: str
    effects: list[RepeatedEffect]


class PlanRedrive(Request, frozen=True, kw_only=True):
    task_id: str


class RedrivePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The effects that a re-drive may repeat, and those that were compensated."""

    task_id: str
    unknown_effects: list[EffectView]
    undone_effects: list[EffectView]
    dry_run: bool = True


class IgnoreTask(Request, frozen=True, kw_only=True):
    """A task. `abandon` also cancels the runs it belongs to; `resolved` records that it was handled manually."""

    task_id: str
    reason: str
    abandon: bool = False
    resolved: bool = False


class IgnoreGroup(Request, frozen=True, kw_only=True):
    """A group. `abandon` also cancels the runs it belongs to; `resolved` records that it was handled manually."""

    fingerprint: str
    reason: str
    abandon: bool = False
    resolved: bool = False


class Dismissed(msgspec.Struct, frozen=True, kw_only=True):
    letters: int
    tasks: int
    disposition: str


class DeleteTask(Request, frozen=True, kw_only=True):
    """A failed task, and the reason why it is no longer needed."""

    task_id: str
    reason: str


class DeleteGroup(Request, frozen=True, kw_only=True):
    """A group, and the reason why it is no longer needed."""

    fingerprint: str
    reason: str


class ExportDeadLetters(Request, frozen=True, kw_only=True):
    """`before` is the `next` of the previous page."""

    fingerprint: str | None = None
    everything: bool = False
    before: str | None = None


@operation("dead.groups", "GET /api/v1/dead/groups", Access.VIEWER)
async def list_groups(context: OperationContext, request: ListGroups) -> GroupPage:
    """Lists unresolved dead letters by group, the largest group first."""
    return GroupPage(groups=await dead_letters.dead_groups(context.database, context.tenant_id))


@operation("dead.list", "GET /api/v1/dead/letters", Access.VIEWER)
async def list_letters(context: OperationContext, request: ListDeadLetters) -> DeadLetterPage:
    """Lists dead letters, newest first, in pages."""
    rows, following = await dead_letters.letter_page(
        context.database,
        context.tenant_id,
        states=words(request.state) or ([] if request.everything else UNRESOLVED),
        fingerprint=request.fingerprint,
        task_id=None if request.task_id is None else bounds.task_number(request.task_id),
        before=None if request.before is None else _number(request.before),
        limit=rows_of(request.limit),
    )
    rows, is_end = younger(rows, lambda row: row.opened_at, await moment_of(context.database, request.since))
    return DeadLetterPage(letters=rows, next=None if is_end else _text(following))


@operation("dead.show", "GET /api/v1/dead/letters/{dead_letter_id}", Access.VIEWER)
async def show_letter(context: OperationContext, request: DeadLetterRequest) -> DeadLetterView:
    """Shows one dead letter with its task's input and traceback."""
    return await dead_letters.show_letter(context.database, context.tenant_id, _number(request.dead_letter_id))


@operation("dead.redrive", "POST /api/v1/dead/tasks/{task_id}/redrive", Access.OPERATOR, status=202, once=KeyUse.STORED)
async def redrive_task(context: OperationContext, request: RedriveTask) -> TaskRedriven:
    """Runs a dead task again as a new generation, with a fresh retry budget."""
    number = bounds.task_number(request.task_id)
    unknown, undone = _split_by_compensation(await _repeated_effects(context, number))

    def answer(done: Requeued) -> TaskRedriven:
        return TaskRedriven(
            task_id=str(number),
            dead_letter_id=None if done.dead_letter_id is None else str(done.dead_letter_id),
            state="queued",
            attempt=done.attempt,
            unknown_effects=unknown,
            undone_effects=undone,
        )

    done = await dead_letter_commands.redrive(
        context.engine,
        context.tenant_id,
        number,
        actor=context.actor,
        reason=request.reason,
        dispatches=request.dispatches,
        once=context.once,
        answer=answer,
    )
    return answer(done)


def _split_by_compensation(effects: list[EffectView]) -> tuple[list[EffectView], list[EffectView]]:
    """Split effects into those that may repeat and those that were compensated."""
    undone = [effect for effect in effects if effect.compensated_by is not None]
    return [effect for effect in effects if effect.compensated_by is None], undone


async def _repeated_effects(context: OperationContext, number: int) -> list[EffectView]:
    """Return the effects that a re-drive may repeat. A repeated request under the same key gets its first response."""
    if context.once is not None:
        await context.once.look(context.database)
    try:
        return await dead_letter_commands.repeated_by(context.engine, context.tenant_id, number)
    except Conflict:
        if context.once is not None:
            await context.once.look(context.database)
        raise


@operation(
    "dead.redrive_group",
    "POST /api/v1/dead/groups/{fingerprint}/redrive",
    Access.OPERATOR,
    status=202,
    once=KeyUse.STORED,
    commands=("dead redrive",),
)
async def redrive_group(context: OperationContext, request: RedriveGroup) -> GroupRedriven:
    """Requests a retry of every dead letter of a group, open or ignored; they are dispatched in the background."""
    effects = (await group_effects(context.engine, context.tenant_id, request.fingerprint)).effects

    def answer(done: DeadLettersMoved) -> GroupRedriven:
        return GroupRedriven(
            fingerprint=request.fingerprint, letters=done.letters, state="retry_requested", effects=effects
        )

    done = await dead_letter_commands.redrive_group(
        context.engine,
        context.tenant_id,
        request.fingerprint,
        actor=context.actor,
        reason=request.reason,
        dispatches=request.dispatches,
        once=context.once,
        answer=answer,
    )
    return answer(done)


@operation("dead.plan_redrive", "GET /api/v1/dead/tasks/{task_id}/plan", Access.VIEWER, commands=("dead redrive",))
async def plan_redrive(context: OperationContext, request: PlanRedrive) -> RedrivePlan:
    """Returns the effects that a re-drive of a task may repeat, and changes nothing."""
    number = bounds.task_number(request.task_id)
    effects = await dead_letter_commands.repeated_by(context.engine, context.tenant_id, number)
    unknown, undone = _split_by_compensation(effects)
    return RedrivePlan(task_id=request.task_id, unknown_effects=unknown, undone_effects=undone)


@operation("dead.ignore", "POST /api/v1/dead/tasks/{task_id}/ignore", Access.OPERATOR)
async def ignore_task(context: OperationContext, request: IgnoreTask) -> Dismissed:
    """Dismisses the dead letters of a task; they are kept and nothing is done about them."""
    number = bounds.task_number(request.task_id)
    return await _dismiss(context, request, task_id=number)


@operation(
    "dead.ignore_group", "POST /api/v1/dead/groups/{fingerprint}/ignore", Access.OPERATOR, commands=("dead ignore",)
)
async def ignore_group(context: OperationContext, request: IgnoreGroup) -> Dismissed:
    """Dismisses the dead letters of a group; they are kept and nothing is done about them."""
    return await _dismiss(context, request, fingerprint=request.fingerprint)


async def _dismiss(
    context: OperationContext,
    request: IgnoreTask | IgnoreGroup,
    *,
    task_id: int | None = None,
    fingerprint: str | None = None,
) -> Dismissed:
    if request.abandon and request.resolved:
        raise Invalid("`abandon` and `resolved` exclude each other.", code="invalid_option")
    if request.resolved:
        done = await dead_letter_commands.resolve(
            context.engine,
            context.tenant_id,
            task_id=task_id,
            fingerprint=fingerprint,
            actor=context.actor,
            reason=request.reason,
        )
        return Dismissed(letters=done.letters, tasks=done.tasks, disposition="resolved")
    done = await dead_letter_commands.ignore(
        context.engine,
        context.tenant_id,
        task_id=task_id,
        fingerprint=fingerprint,
        actor=context.actor,
        reason=request.reason,
        abandons=request.abandon,
    )
    return Dismissed(letters=done.letters, tasks=done.tasks, disposition="abandoned" if request.abandon else "ignored")


@operation("dead.delete", "POST /api/v1/dead/tasks/{task_id}/delete", Access.OPERATOR)
async def delete_task(context: OperationContext, request: DeleteTask) -> Deleted:
    """Deletes a failed task and all its data; a node is deleted with its whole run, which must have ended."""
    number = bounds.task_number(request.task_id)
    return await delete.delete_task(
        context.engine, context.tenant_id, number, actor=context.actor, reason=request.reason
    )


@operation(
    "dead.delete_group", "POST /api/v1/dead/groups/{fingerprint}/delete", Access.OPERATOR, commands=("dead delete",)
)
async def delete_group(context: OperationContext, request: DeleteGroup) -> Deleted:
    """Deletes the failed tasks of a group; tasks of runs that have not ended are kept."""
    return await delete.delete_group(
        context.engine, context.tenant_id, request.fingerprint, actor=context.actor, reason=request.reason
    )


@operation("dead.export", "GET /api/v1/dead/export", Access.OPERATOR)
async def export_letters(context: OperationContext, request: ExportDeadLetters) -> DeadLetterPage:
    """Returns dead letters with their inputs, newest first, in pages."""
    rows, following = await dead_letters.letter_page(
        context.database,
        context.tenant_id,
        states=[] if request.everything else UNRESOLVED,
        fingerprint=request.fingerprint,
        before=None if request.before is None else _number(request.before),
        limit=ROWS_MAX,
        with_input=True,
    )
    return DeadLetterPage(letters=rows, next=_text(following))


def _text(following: int | None) -> str | None:
    return None if following is None else str(following)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise NotFound(f"There is no dead letter {text[:80]!r}.", code="dead_letter_not_found")
    return int(text)


OPERATIONS = (
    list_groups,
    list_letters,
    show_letter,
    redrive_task,
    redrive_group,
    plan_redrive,
    ignore_task,
    ignore_group,
    delete_task,
    delete_group,
    export_letters,
)
