"""Explain tasks: read the facts about one task in a few statements and pass them to the pure explanation.

`explain_run` explains runs and nodes without a task; its `why` accepts any id.
"""

from __future__ import annotations

import json

from holdfast.core.explain.evidence import (
    BreakerFacts,
    CampaignFacts,
    CarrierFacts,
    DeadLetterFacts,
    FailureFacts,
    LaunchFacts,
    Position,
    QueueFacts,
    QuotaFacts,
    RunPlace,
    TaskFacts,
    TenantFacts,
    WorkerFacts,
    WorkersFacts,
)
from holdfast.core.explain.task import Explanation, explain
from holdfast.core.health.liveness import SILENT_SECONDS_MIN
from holdfast.core.tasks.progress_text import progress_text
from holdfast.core.tasks.states import ATTEMPT_ENDS
from holdfast.engine.limits.breakers import BreakerView, find_breaker
from holdfast.engine.limits.quotas import QuotaView, list_quotas
from holdfast.errors import NotFound
from holdfast.store.catalog import Catalog
from holdfast.store.database import Database
from holdfast.store.sql.queries import explain as explain_sql
from holdfast.store.sql.workers import launches as launches_sql

AHEAD_MAX = 1_000


async def why_task(
    database: Database,
    catalog: Catalog,
    tenant_id: int,
    task_id: int,
    *,
    silent_seconds: float = SILENT_SECONDS_MIN,
) -> Explanation:
    """Explain the state of a task; raise `NotFound` if there is none, also for a node that has no task yet.

    A worker without a heartbeat for longer than `silent_seconds` is not counted as live, whether or not it is marked
    lost.
    """
    return explain(await read_facts(database, catalog, tenant_id, task_id, silent_seconds))


async def read_facts(
    database: Database, catalog: Catalog, tenant_id: int, task_id: int, silent_seconds: float
) -> TaskFacts:
    row = await explain_sql.explain_task(database, task_id, tenant_id)
    if row is None:
        raise NotFound(
            f"There is no task {task_id}.",
            code="task_not_found",
            advice="Completed tasks are kept for as long as HOLDFAST_RETENTION_DAYS says.",
        )
    wait = None
    if row.position in (Position.QUEUED, Position.DELAYED, Position.RETRYING):
        wait = await explain_sql.explain_wait(database, row.lane_id, task_id, row.priority, AHEAD_MAX, silent_seconds)
    breaker = None if wait is None else await find_breaker(database, tenant_id, row.action)
    launch = None
    if wait is not None or row.position == Position.RESERVED:
        attempt = row.attempt + (row.position != Position.RESERVED)
        launch = await launches_sql.explain_launch(database, row.lane_id, task_id, attempt)
    quotas = []
    if row.position == Position.RETRYING:
        quotas = await list_quotas(database, tenant_id, lane_id=row.lane_id)
    return TaskFacts(
        task_id=str(task_id),
        action=row.action,
        position=Position(row.position),
        at=row.at,
        created_at=row.created_at,
        queue=QueueFacts(name=row.queue) if wait is None else _queue(row.queue, wait),
        crew=WorkersFacts() if wait is None else _crew(wait),
        tenant=None if wait is None else _tenant(wait),
        breaker=None if breaker is None else _breaker(breaker),
        quotas=tuple(_quota(view) for view in quotas),
        carrier=None if wait is None else _carrier(wait),
        attempt=row.attempt,
        retries=row.retries,
        max_retries=row.max_retries,
        losses=row.losses,
        max_losses=row.max_losses,
        generation=row.generation,
        due_at=row.due_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        lease_expires_at=row.lease_expires_at,
        timeout_seconds=row.timeout_seconds,
        cancel_at=row.cancel_at,
        actor=row.actor or "",
        reason=row.reason or "",
        worker=_worker(row, "worker"),
        failure=_failure(row),
        progress="" if row.progress is None else progress_text(json.loads(row.progress)),
        ahead=0 if wait is None else wait.ahead,
        ahead_is_more=wait is not None and wait.ahead >= AHEAD_MAX,
        output_bytes=row.output_bytes,
        unknown_effects=tuple(row.unknown_effects or ()),
        undone_effects=tuple(row.undone_effects or ()),
        letters=await read_letters(database, tenant_id, task_id),
        place=await _place(database, catalog, row),
        launch=None if launch is None else _launch(launch),
    )


async def read_letters(database: Database, tenant_id: int, task_id: int) -> tuple[DeadLetterFacts, ...]:
    """Return the unresolved dead letters of a task, one of each kind; one that is being retried comes first."""
    return tuple(_letter(row) for row in await explain_sql.explain_dead_letters(database, task_id, tenant_id))


def _letter(row: explain_sql.ExplainDeadLettersRow) -> DeadLetterFacts:
    campaign = None
    if row.campaign_id is not None:
        campaign = CampaignFacts(campaign_id=row.campaign_id, name=row.campaign_name, state=row.campaign_state)
    return DeadLetterFacts(
        dead_letter_id=row.dead_letter_id,
        state=row.state,
        changed_at=row.changed_at,
        disposition=row.disposition,
        reason=row.disposition_reason,
        actor=row.actor,
        dispatches=row.dispatches,
        dispatches_max=row.dispatches_max,
        next_at=row.next_at,
        can_retry=row.can_retry,
        campaign=campaign,
    )


def _launch(row: launches_sql.ExplainLaunchRow) -> LaunchFacts:
    return LaunchFacts(
        launcher=row.launcher,
        seen_at=row.seen_at,
        is_for_tenant=row.is_for_tenant,
        is_for_action=row.is_for_action,
        slots=row.slots or 0,
        taken=row.taken,
        failures=row.failures,
        error=row.error or "",
        launched_at=row.launched_at,
    )


async def _place(database: Database, catalog: Catalog, row: explain_sql.ExplainTaskRow) -> RunPlace | None:
    if row.run_id is None:
        return None
    async with database.session() as session:
        assert row.snapshot_id is not None and row.node_no is not None, "a node of a run has both"
        await catalog.flows.learn([row.snapshot_id], session)
    plan = catalog.flows.snapshot(row.snapshot_id).plan
    return RunPlace(
        run_id=str(row.run_id),
        flow=plan.name,
        version=plan.version,
        node=plan.nodes[row.node_no].name,
        item=row.item_no,
    )


def _queue(name: str, wait: explain_sql.ExplainWaitRow) -> QueueFacts:
    room = wait.starts_room
    return QueueFacts(
        name=name,
        paused_at=wait.paused_at,
        paused_by=wait.paused_by or "",
        paused_reason=wait.paused_reason or "",
        max_running=wait.max_running,
        running=wait.running,
        starts_per_second=wait.starts_per_second,
        starts_room=1 if room is None else room,
    )


def _tenant(wait: explain_sql.ExplainWaitRow) -> TenantFacts | None:
    if wait.tenant_max_running is None:
        return None
    return TenantFacts(name=wait.tenant_name, max_running=wait.tenant_max_running, running=wait.tenant_running)


def _crew(wait: explain_sql.ExplainWaitRow) -> WorkersFacts:
    elsewhere = _worker(wait, "elsewhere")
    return WorkersFacts(
        able=wait.able, slots=wait.slots, busy=wait.busy, last=_worker(wait, "last"), elsewhere=elsewhere
    )


def _carrier(wait: explain_sql.ExplainWaitRow) -> CarrierFacts | None:
    if wait.carrier_away_since is None:
        return None
    return CarrierFacts(name=wait.carrier, away_since=wait.carrier_away_since, detail=wait.carrier_detail)


def _breaker(view: BreakerView) -> BreakerFacts:
    return BreakerFacts(
        state=view.state,
        since=view.since,
        trial_at=view.trial_at,
        attempts=view.attempts,
        failures=view.failures,
        cause=view.cause,
        actor=view.actor,
        reason=view.reason,
        trials=view.trials,
        passed=view.passed,
        running=view.running,
    )


def _quota(view: QuotaView) -> QuotaFacts:
    return QuotaFacts(
        scope=view.scope,
        name=view.name,
        text=view.text,
        used=view.used,
        allowed=view.allowed,
        next_slot_seconds=view.next_slot_seconds,
    )


def _worker(row: explain_sql.ExplainTaskRow | explain_sql.ExplainWaitRow, prefix: str) -> WorkerFacts | None:
    found = row._asdict()
    if found[f"{prefix}_name"] is None:
        return None
    queues = found.get(f"{prefix}_queues")
    return WorkerFacts(
        name=found[f"{prefix}_name"],
        state=found[f"{prefix}_state"],
        beat_at=found[f"{prefix}_beat_at"],
        ended_at=found.get(f"{prefix}_ended_at"),
        version=found[f"{prefix}_version"],
        queues=None if queues is None else tuple(queues),
    )


def _failure(row: explain_sql.ExplainTaskRow) -> FailureFacts | None:
    if row.failure_attempt is None:
        return None
    return FailureFacts(
        attempt=row.failure_attempt,
        state=ATTEMPT_ENDS[row.failure_state],
        code=row.code,
        type=row.type,
        message=row.message,
        reason=row.failure_reason,
        rule=row.rule,
        sentence=row.sentence,
        ended_at=row.failure_ended_at,
        retry_at=row.failure_retry_at,
        known_as=row.failure_class,
    )
