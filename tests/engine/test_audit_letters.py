"""What is done about dead letters and by campaigns leaves its rows in the audit log: what was, what became of it."""

from __future__ import annotations

import pytest
from tests.core.flows import a_flow
from tests.engine.full_disk import full_disk, is_refused

from holdfast.core.dead_letters.dead_letter import SWEEP_ACTOR
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.audit import list_audit, verify_audit
from holdfast.engine.campaigns import commands as campaign_commands
from holdfast.engine.lifecycle.dead_letters import commands as dead_letter_commands
from holdfast.engine.lifecycle.dead_letters.reinject import reinject_once
from holdfast.engine.lifecycle.tasks.delete import delete_task
from holdfast.engine.queries.dead_letters import dead_groups
from holdfast.testing.factories import a_failed_task, a_failure

WHO = {"actor": "anna", "reason": "fixed in 2.1"}
NEW = {"state": "queued", "attempt": 2, "generation": 2}


class Subject:
    """Something to change, one verb, and the row it leaves: verb, subject, before and after."""

    def __init__(self, engine, harness) -> None:
        self.engine, self.harness = engine, harness

    async def redrive(self):
        task_id = await a_failed_task(self.harness)
        verb = lambda: dead_letter_commands.redrive(self.engine, 1, int(task_id), **WHO)  # noqa: E731
        return verb, ("dead.redrive", "task", task_id, {"state": "failed"}, NEW)

    async def redrive_group(self):
        fingerprint, _ = await self._a_group(2)
        await dead_letter_commands.ignore(self.engine, 1, task_id=1, actor="bob", reason="known")
        verb = lambda: dead_letter_commands.redrive_group(self.engine, 1, fingerprint, **WHO)  # noqa: E731
        was = {"open": 1, "ignored": 1}
        return verb, ("dead.redrive", "dead_group", fingerprint, was, {"retry_requested": 2})

    async def ignore(self):
        _, letter_id = await self._a_group()
        verb = lambda: dead_letter_commands.ignore(self.engine, 1, task_id=1, **WHO)  # noqa: E731
        was, now = {"state": "open", "disposition": ""}, {"state": "ignored", "disposition": "ignored"}
        return verb, ("dead.ignore", "dead_letter", letter_id, was, now)

    async def abandon(self):
        _, letter_id = await self._a_group()
        await dead_letter_commands.ignore(self.engine, 1, task_id=1, actor="bob", reason="known")
        verb = lambda: dead_letter_commands.ignore(self.engine, 1, task_id=1, abandons=True, **WHO)  # noqa: E731
        was, now = {"state": "ignored", "disposition": "ignored"}, {"state": "ignored", "disposition": "abandoned"}
        return verb, ("dead.ignore", "dead_letter", letter_id, was, now)

    async def resolve(self):
        fingerprint, letter_id = await self._a_group()
        await dead_letter_commands.redrive_group(self.engine, 1, fingerprint, actor="bob", reason="again")
        verb = lambda: dead_letter_commands.resolve(self.engine, 1, task_id=1, **WHO)  # noqa: E731
        was = {"state": "retry_requested", "disposition": "retry_requested"}
        return verb, ("dead.resolve", "dead_letter", letter_id, was, {"state": "resolved", "disposition": "resolved"})

    async def dispatch(self):
        fingerprint, letter_id = await self._a_group()
        await dead_letter_commands.redrive_group(self.engine, 1, fingerprint, **WHO)
        now = {"state": "retrying", "outcome": "requeued_for_dead_letter_retry"}
        return self.harness.sweep_once, (
            "dead.dispatch", "dead_letter", letter_id, {"state": "retry_requested"}, now,
        )  # fmt: skip

    async def reinject(self):
        task_id = await a_failed_task(self.harness)
        verb = lambda: reinject_once(self.engine, "anna", 30.0)  # noqa: E731
        return verb, ("dead.reinject", "task", task_id, {"state": "failed"}, NEW)

    async def delete(self):
        task_id = await a_failed_task(self.harness)
        verb = lambda: delete_task(self.engine, 1, int(task_id), **WHO)  # noqa: E731
        was, now = {"state": "failed", "letters": 1}, {"state": "deleted", "letters": 0}
        return verb, ("dead.delete", "task", task_id, was, now)

    async def campaign_start(self):
        fingerprint, _ = await self._a_group()
        verb = lambda: campaign_commands.start_campaign(self.engine, 1, fingerprint, **WHO)  # noqa: E731
        return verb, ("campaign.start", "campaign", "1", None, {"state": "canary"})

    async def campaign_approve(self):
        await self._a_campaign(needs_approval=True)
        verb = lambda: campaign_commands.approve_campaign(self.engine, 1, 1, actor="anna")  # noqa: E731
        return verb, ("campaign.approve", "campaign", "1", {"state": "awaiting_approval"}, {"state": "canary"})

    async def campaign_abort(self):
        await self._a_campaign()
        verb = lambda: campaign_commands.abort_campaign(self.engine, 1, 1, **WHO)  # noqa: E731
        return verb, ("campaign.abort", "campaign", "1", {"state": "canary"}, {"state": "aborted"})

    async def campaign_resume(self):
        await self._a_campaign()
        await self._run_canary(Failed(a_failure()))
        await self.harness.campaigns_once()
        verb = lambda: campaign_commands.resume_campaign(self.engine, 1, 1, **WHO)  # noqa: E731
        return verb, ("campaign.resume", "campaign", "1", {"state": "stopped"}, {"state": "canary"})

    async def campaign_release(self):
        await self._a_campaign()
        return self.harness.campaigns_once, ("campaign.release", "campaign", "1", {"released": 0}, {"released": 1})

    async def campaign_move(self):
        await self._a_campaign()
        await self._run_canary(Completed(b"1"))
        now = {"state": "completed", "note": "every dead letter was re-driven"}
        return self.harness.campaigns_once, ("campaign.move", "campaign", "1", {"state": "canary"}, now)

    async def _a_group(self, tasks=1):
        """Tasks 1 … that failed in one way; the fault, and the first letter."""
        for _ in range(tasks):
            await a_failed_task(self.harness)
        [group] = await dead_groups(self.engine.database, 1)
        return group.fingerprint, "1"

    async def _a_campaign(self, **options):
        fingerprint, _ = await self._a_group()
        await campaign_commands.start_campaign(self.engine, 1, fingerprint, actor="bob", reason="fixed", **options)

    async def _run_canary(self, outcome):
        await self.harness.campaigns_once()
        await self.harness.settle(await self.harness.claim_one(), outcome)


VERBS = [name for name in vars(Subject) if not name.startswith("_")]
BY_THE_ENGINE = {"dispatch", "campaign_release", "campaign_move"}


@pytest.fixture
def subject(engine, harness):
    return Subject(engine, harness)


@pytest.mark.parametrize("name", VERBS)
async def test_what_is_done_about_letters_leaves_its_row(subject, engine, name):
    change, expected = await getattr(subject, name)()
    earlier = len(await list_audit(engine.database, 1))
    await change()
    row, *others = await list_audit(engine.database, 1)
    assert (row.verb, row.subject_kind, row.subject_id, row.before, row.after) == expected
    assert row.actor == (SWEEP_ACTOR if name in BY_THE_ENGINE else "anna") and len(others) == earlier
    if name not in BY_THE_ENGINE | {"reinject", "campaign_approve"}:
        assert row.reason == WHO["reason"]
    assert (await verify_audit(engine.database, 1)).is_sound


PASSES = {"campaign_move", "campaign_release"}
"""What a pass does: it goes on to the next campaign, and tells of this one in its log."""


@pytest.mark.parametrize("name", sorted({*VERBS} - {"reinject"}))
async def test_a_change_of_letters_that_cannot_be_recorded_does_not_happen(subject, engine, name, caplog):
    change, _ = await getattr(subject, name)()
    async with full_disk(engine):
        if name in PASSES:
            await change()
            assert "full_disk" in caplog.text
        else:
            await is_refused(change)


async def test_abandoning_leaves_rows_of_letter_and_run_together(engine, harness):
    run_id = await harness.runs.start(a_flow(alone=("a", "b")))
    lease = await harness.claim_one()
    await harness.settle(lease, Failed(a_failure()))
    await dead_letter_commands.ignore(engine, 1, task_id=int(lease.task_id), abandons=True, **WHO)
    canceled, ignored = await list_audit(engine.database, 1)
    assert (ignored.verb, ignored.after["disposition"]) == ("dead.ignore", "abandoned")
    assert (canceled.verb, canceled.subject_id, canceled.reason) == ("run.cancel", run_id, WHO["reason"])


async def test_what_was_dismissed_before_leaves_no_second_row(engine, harness):
    task_id = await a_failed_task(harness)
    for _ in range(2):
        await dead_letter_commands.ignore(engine, 1, task_id=int(task_id), abandons=True, **WHO)
    assert [row.verb for row in await list_audit(engine.database, 1)] == ["dead.ignore"]
