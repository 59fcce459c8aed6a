"""Settle attempts: record how they ended and what follows, in the caller's transaction.

One statement settles completed attempts, a second all others. The fence is the pair of attempt and lease token, checked
in SQL. A report that matches no row is compared with the record: the identical report gets the same answer again, any
other is refused with the attempt that won.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, cast
from uuid import UUID

from holdfast.core.dead_letters.dead_letter import SWEEP_ACTOR
from holdfast.core.tasks.backoff import jitter_of
from holdfast.core.tasks.fingerprint import fingerprint
from holdfast.core.tasks.outcome import Canceled, Completed, Failed, Lost, Released, TimedOut, attempt_state
from holdfast.core.tasks.retry import RetryAt, RetryPolicy, Stop, classification, decide
from holdfast.core.tasks.states import ATTEMPT_CODES, ENDS, LiveState, TaskState
from holdfast.engine.datasets.commit import commit_datasets, lock_generations
from holdfast.engine.leases import Refusal, Report, Settled
from holdfast.engine.lifecycle.runs.release import NodeEnd, end_nodes
from holdfast.engine.limits.breakers import EndedAttempt, count
from holdfast.engine.notifications import Notifications
from holdfast.store.catalog import Catalog
from holdfast.store.database import Session
from holdfast.store.sql.dead_letters import sweep as sweep_sql
from holdfast.store.sql.queries import events as events_sql
from holdfast.store.sql.tasks import settle as settle_sql

_WINNERS = {**{one.value: one.name.lower() for one in LiveState}, **ENDS}
_NOTHING_TO_PARK = (None, None, None, None)
NO_LETTER = "No dead letter was opened: they are off for this worker."
BeforeRelease = Callable[[], Awaitable[None]]


async def settle(
    session: Session, catalog: Catalog, reports: Sequence[Report], *, before_release: BeforeRelease | None = None
) -> Settled:
    """Settle a batch of reports. The caller commits, then publishes the notifications.

    `before_release` is awaited before runs are locked, if any are. Work that it does does not delay other transactions
    that end nodes of the same runs. Without it, the runs are locked one round trip earlier.
    """
    if said := [report for report in reports if report.notes]:
        await _keep_notes(session, said)
    first, again = _apart(reports)
    settled = await _settle(session, catalog, first, before_release)
    while again:
        first, again = _apart(again)
        settled = settled.and_(await _settle(session, catalog, first))
    if catalog.guarded and (ended := [_ended(catalog, one) for one in reports if _says_something(catalog, one)]):
        settled = settled.and_(Settled(0, [], Notifications(set(await count(session, ended)), [], [])))
    return settled


async def _keep_notes(session: Session, reports: Sequence[Report]) -> None:
    """Store the notes of the reports in the settling transaction. After a rollback they are sent again; a repeated
    report finds no lease and adds nothing."""
    said = [(report, kind, detail) for report in reports for kind, detail in report.notes]
    await events_sql.add_notes(
        session,
        [report.task_id for report, _, _ in said],
        [report.attempt for report, _, _ in said],
        [report.lease_token for report, _, _ in said],
        [kind for _, kind, _ in said],
        [detail for _, _, detail in said],
    )


def _says_something(catalog: Catalog, report: Report) -> bool:
    """Return whether an outcome counts for a breaker. Lost, canceled and released attempts do not."""
    return report.lane_id in catalog.guarded and isinstance(report.outcome, Completed | Failed | TimedOut)


def _policy(catalog: Catalog, report: Report) -> RetryPolicy:
    """Return the policy by which a failure is decided and counted by the breaker of its action."""
    return report.policy or catalog.policy(report.policy_id)


def _ended(catalog: Catalog, report: Report) -> EndedAttempt:
    lease = (report.task_id, report.attempt, report.lane_id)
    if isinstance(report.outcome, Failed | TimedOut):
        found = classification(_policy(catalog, report), report.outcome)
        if found.is_retriable:
            kind = report.outcome.failure.type.rpartition(".")[2]
            return EndedAttempt(*lease, failure=f"{found.reason} ({kind})" if kind else found.reason)
    return EndedAttempt(*lease)


def _apart(reports: Sequence[Report]) -> tuple[Sequence[Report], Sequence[Report]]:
    """Split reports into the first report of each task and the rest: a worker that lost a lease and claimed the task
    again may report both attempts in one batch."""
    first: dict[int, Report] = {}
    again = []
    for report in reports:
        if report.task_id in first:
            again.append(report)
        else:
            first[report.task_id] = report
    return list(first.values()), again


async def _settle(
    session: Session, catalog: Catalog, reports: Sequence[Report], before_release: BeforeRelease | None = None
) -> Settled:
    completed = [report for report in reports if type(report.outcome) is Completed]
    if any(report.outcome.commits for report in completed):  # type: ignore[union-attr]
        locked = await lock_generations(session, reports)
        await settle_sql.lock_tasks(session, [report.task_id for report in reports])
        reports = await commit_datasets(session, reports, locked)
        completed = [report for report in reports if type(report.outcome) is Completed]
    ends: list[NodeEnd] = []
    others = [report for report in reports if type(report.outcome) is not Completed]
    accepted = 0
    awaited: list[int] = []
    lanes: list[int] = []
    redriven: list[int] | None = None
    failed_again: list[int] | None = None
    failed_runs: list[int] = []
    # In a mixed batch all runs are locked together, later; locked in two steps they would violate the lock order.
    locks_runs = before_release is None and not others
    runs: Sequence[Sequence[Any]] | None = None
    if completed and others:
        await settle_sql.lock_tasks(session, [report.task_id for report in reports])
    if completed:
        done = await settle_sql.settle_completed(session, *_completed_columns(completed), locks_runs)
        accepted += done.accepted
        awaited += done.awaited or []
        redriven = done.redriven
        ends += _node_ends(done, repeat(TaskState.COMPLETED))
        # Dead letters of re-driven tasks are locked before any run; in that case the statement did not lock the runs.
        if locks_runs and not redriven:
            runs = cast(list[list[Any]], done.runs or [])  # two-dimensional: the rows of the locked runs
    if others:
        row = await settle_sql.settle_incomplete(session, *_other_columns(catalog, others))
        accepted += row.accepted
        awaited += row.awaited or []
        lanes += row.lanes or []
        failed_again, failed_runs = row.failed_again, row.failed_again_runs or []
        ends += _node_ends(row, map(ENDS.__getitem__, row.node_states or ()))
    if redriven or failed_again:
        await sweep_sql.update_dead_letters_after_settle(
            session, redriven or [], failed_again or [], failed_runs, SWEEP_ACTOR
        )
    notifications = Notifications(set(lanes), awaited, [])
    if ends:
        if before_release is not None:
            await before_release()
        notifications = notifications.and_(await end_nodes(session, catalog, ends, runs))
    refused = [] if accepted == len(reports) else await _refusals(session, reports)
    return Settled(len(reports) - len(refused), refused, notifications)


def _node_ends(
    row: settle_sql.SettleCompletedRow | settle_sql.SettleIncompleteRow, states: Iterable[TaskState]
) -> Iterable[NodeEnd]:
    """Return the tasks of runs that a settling statement ended."""
    return zip(row.node_tasks or (), row.node_runs or (), row.node_numbers or (), states, strict=False)


def _completed_columns(reports: Sequence[Report]) -> tuple[list[int], list[int], list[UUID], list[bytes]]:
    return (
        [report.task_id for report in reports],
        [report.attempt for report in reports],
        [report.lease_token for report in reports],
        [report.outcome.output for report in reports],  # type: ignore[union-attr]
    )


def _other_columns(catalog: Catalog, reports: Sequence[Report]) -> tuple[Any, ...]:
    rows = [_other_row(catalog, report) for report in reports]
    return tuple(list(column) for column in zip(*rows, strict=True))


def _other_row(catalog: Catalog, report: Report) -> tuple[object, ...]:
    outcome = report.outcome
    code = ATTEMPT_CODES[attempt_state(outcome)]
    lease = (report.task_id, report.attempt, report.lease_token, code)
    match outcome:
        case Failed(failure) | TimedOut(failure) | Lost(failure):
            decision = decide(
                _policy(catalog, report),
                outcome,
                retries=report.retries,
                losses=report.losses,
                jitter=jitter_of(report.task_id, report.attempt),
            )
            delay = decision.delay.total_seconds() if isinstance(decision, RetryAt) else 0.0
            after = ("w" if delay else "q") if isinstance(decision, RetryAt) else "f"
            cause = (failure.code, failure.type, failure.message, failure.traceback)
            known = decision.classification.reason
            letter: tuple[object, ...] = _NOTHING_TO_PARK
            if isinstance(decision, Stop) and report.opens_letter:
                letter = (fingerprint(outcome), known, report.input, failure.effect or None)
            sentence = decision.sentence if report.opens_letter or after != "f" else f"{decision.sentence} {NO_LETTER}"
            return (*lease, after, delay, *cause, decision.reason, decision.rule, sentence, *letter, known)
        case Canceled(reason):
            return (*lease, "x", 0.0, "", "", "", "", reason or "canceled", "", "", *_NOTHING_TO_PARK, None)
        case Released(reason):
            return (*lease, "q", 0.0, "", "", "", "", reason or "released", "", "", *_NOTHING_TO_PARK, None)
        case Completed():
            raise AssertionError("completed attempts are settled by their own statement")


async def _refusals(session: Session, reports: Sequence[Report]) -> list[Refusal]:
    """Return a refusal for each report that is not recorded identically as settled by its own lease."""
    said = [_said(report) for report in reports]
    rows = await settle_sql.find_settled(
        session,
        [report.task_id for report in reports],
        [report.attempt for report in reports],
        [report.lease_token for report in reports],
        *(list(column) for column in zip(*said, strict=True)),
    )
    on_record = {(row.task_id, row.attempt): row for row in rows}
    refused = []
    for report in reports:
        found = on_record.get((report.task_id, report.attempt))
        if found is not None and _is_as_before(report, found.state, is_same=found.is_same):
            continue
        winner = await settle_sql.find_winner(session, report.task_id)
        refused.append(Refusal(report.task_id, report.attempt, _winner_text(winner)))
    return refused


def _said(report: Report) -> tuple[bytes | None, str, str]:
    """Return the values by which two reports with the same outcome differ: the output, or the error code and
    message."""
    match report.outcome:
        case Completed(output):
            return (output, "", "")
        case Failed(failure) | TimedOut(failure) | Lost(failure):
            return (None, failure.code, failure.message)
        case _:
            return (None, "", "")


def _is_as_before(report: Report, state: str, *, is_same: bool) -> bool:
    """Return whether the record shows this report. A completed report that failed to commit its datasets is recorded as
    failed."""
    if state == "f" and type(report.outcome) is Completed and report.outcome.commits:
        return True
    # The engine itself reports a loss, with a message that depends on which process noticed it first.
    is_same = is_same or isinstance(report.outcome, Lost)
    return is_same and state == ATTEMPT_CODES[attempt_state(report.outcome)]


def _winner_text(row: settle_sql.FindWinnerRow | None) -> str:
    if row is None:
        return "the task does not exist"
    state, attempt, worker_id, _ = row
    by = f" by worker {worker_id}" if worker_id is not None else ""
    return f"attempt {attempt} is {_WINNERS[state]}{by}"


async def warm_settle(session: Session) -> None:
    """Prepare the settling statement by settling nothing."""
    await settle_sql.settle_completed(session, [], [], [], [], False)
