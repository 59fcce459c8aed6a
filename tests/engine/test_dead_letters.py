"""A letter opens with the end of its task, and closes with its success."""

from __future__ import annotations

import json

import pytest

from holdfast.core.tasks.fingerprint import fingerprint
from holdfast.core.tasks.outcome import Completed, Failed, Lost
from holdfast.engine.queries.dead_letters import dead_groups, list_letters, show_letter
from holdfast.errors import Invalid, NotFound
from holdfast.testing import factories as a


async def groups(harness):
    return await dead_groups(harness.engine.database, 1)


async def test_a_task_that_fails_for_good_opens_a_letter(harness):
    task_id = await a.a_failed_task(harness, input={"order": 7})
    [letter] = await harness.letters(task_id)
    assert (letter.state, letter.task_id, letter.run_id, letter.source_type) == ("open", task_id, task_id, "task")
    assert (letter.attempts, letter.dispatches, letter.previous_id) == (1, 0, None)
    assert (letter.cause, letter.reason) == ("connection_error", "retries_exhausted")
    assert letter.fingerprint == fingerprint(Failed(a.a_failure()))
    assert letter.recovery_options == ["retry", "ignore", "abandon"]


async def test_a_retry_that_waits_has_no_letter(harness):
    assert not await harness.letters(await a.a_retrying_task(harness))


@pytest.mark.parametrize("stage", ["canceled", "completed"])
async def test_a_task_that_ends_otherwise_has_no_letter(harness, stage):
    assert not await harness.letters(await getattr(a, f"a_{stage}_task")(harness))


async def test_a_cancel_that_wins_over_a_failure_opens_no_letter(harness):
    lease = await a.a_running_task(harness, max_retries=0)
    await harness.cancel(lease.task_id)
    await harness.settle(lease, Failed(a.a_failure()))
    assert not await harness.letters(lease.task_id)


async def test_the_reaper_opens_letters_too(harness, clock):
    lease = await a.a_running_task(harness, max_losses=0)
    await clock.advance(seconds=lease.seconds + 1)
    await harness.reap_once()
    [letter] = await harness.letters(lease.task_id)
    assert (letter.cause, letter.reason) == ("lost", "losses_exhausted")
    assert letter.fingerprint == fingerprint(Lost(a.a_failure(code="DAG_TASK_EXECUTION_LOST")))


async def test_a_repeated_report_opens_no_second_letter(harness):
    lease = await a.a_running_task(harness, max_retries=0)
    for _ in range(2):
        await harness.settle(lease, Failed(a.a_failure()))
    assert len(await harness.letters(lease.task_id)) == 1


async def test_a_success_resolves_all_letters_of_the_task(harness):
    task_id = await a.a_failed_task(harness)
    await harness.redrive(task_id)
    await harness.settle(await harness.claim_one(), Failed(a.a_failure()))
    await harness.redrive(task_id)
    await harness.settle(await harness.claim_one(), Completed(b"1"))
    letters = await harness.letters(task_id)
    assert [(one.state, one.disposition) for one in letters] == [("resolved", "retry_succeeded")] * 2
    assert not await groups(harness)


async def test_a_repeat_failure_opens_a_fresh_letter_linked_to_the_old_one(harness):
    task_id = await a.a_failed_task(harness)
    await harness.redrive(task_id)
    await harness.settle(await harness.claim_one(), Failed(a.a_failure()))
    old, fresh = await harness.letters(task_id)
    assert (old.state, old.dispatches, fresh.state, fresh.dispatches) == ("retrying", 1, "open", 0)
    assert (fresh.previous_id, fresh.attempts) == (old.dead_letter_id, 2)


async def test_groups_count_a_task_once(harness):
    task_id = await a.a_failed_task(harness)
    await harness.redrive(task_id)
    await harness.settle(await harness.claim_one(), Failed(a.a_failure()))
    [group] = await groups(harness)
    assert (group.count, group.letters, group.open, group.retrying) == (1, 2, 1, 1)


async def test_failures_that_differ_in_their_ids_are_one_group(harness):
    for order in (7, 8):
        lease = await a.a_running_task(harness, queue=f"q{order}")
        await harness.settle(lease, Failed(a.a_failure(f"validation: no order {order}")))
    await a.a_failed_task(harness)
    first, second = await groups(harness)
    assert (first.count, first.message, first.queues) == (2, "validation: no order 8", ["q7", "q8"])
    assert (second.count, second.actions, second.cause) == (1, [a.ACTION], "connection_error")
    assert first.first_seen <= first.last_seen


async def test_what_is_ignored_is_in_no_group(harness):
    from holdfast.engine.lifecycle.dead_letters.commands import ignore

    task_id = await a.a_failed_task(harness)
    asked = await ignore(harness.engine, 1, task_id=int(task_id), actor="ann", reason="known")
    assert asked.letters == 1 and not await groups(harness)
    [letter] = await harness.letters(task_id)
    assert (letter.state, letter.disposition, letter.actor, letter.disposition_reason) == (
        "ignored", "ignored", "ann", "known",
    )  # fmt: skip


async def test_an_open_letter_may_be_called_resolved_and_its_task_run_again_all_the_same(harness):
    from holdfast.engine.lifecycle.dead_letters.commands import resolve

    task_id = await a.a_failed_task(harness)
    await resolve(harness.engine, 1, task_id=int(task_id), actor="ann", reason="mended by hand")
    assert [one.state for one in await harness.letters(task_id)] == ["resolved"]
    assert await harness.redrive(task_id) == 2


async def test_another_tenants_letters_are_not_seen_or_moved(harness):
    from holdfast.engine.lifecycle.dead_letters.commands import ignore, redrive, redrive_group

    task_id = await a.a_failed_task(harness)
    [letter] = await harness.letters(task_id)
    database = harness.engine.database
    assert not await dead_groups(database, 2) and not await list_letters(database, 2)
    with pytest.raises(NotFound):
        await show_letter(database, 2, int(letter.dead_letter_id))
    who = {"actor": "eve", "reason": "mine"}
    with pytest.raises(NotFound):
        await redrive(harness.engine, 2, int(task_id), **who)
    with pytest.raises(NotFound):
        await redrive_group(harness.engine, 2, letter.fingerprint, **who)
    with pytest.raises(NotFound):
        await ignore(harness.engine, 2, task_id=int(task_id), **who)
    assert [one.state for one in await harness.letters(task_id)] == ["open"]


async def test_a_letter_is_shown_with_input_and_traceback(harness):
    task_id = await a.a_failed_task(harness, input={"order": 7}, tags=("vip",))
    [listed] = await harness.letters(task_id)
    shown = await show_letter(harness.engine.database, 1, int(listed.dead_letter_id))
    assert bytes(listed.input) == b"null" and bytes(shown.input) == b'{"order":7}'
    assert shown.tags == ["vip"] and shown.message == "connection reset by peer"


@pytest.mark.parametrize("reason", ["", "   "])
async def test_nothing_is_done_without_a_reason(harness, reason):
    task_id = await a.a_failed_task(harness)
    with pytest.raises(Invalid, match="reason"):
        await harness.redrive(task_id, reason=reason)


async def test_the_life_of_a_letter_is_told(harness):
    task_id = await a.a_failed_task(harness)
    await harness.redrive(task_id, actor="ann", reason="fixed in 2.1")
    await harness.settle(await harness.claim_one(), Completed(b"1"))
    told = await harness.engine.database.fetch(
        "select kind, detail::text from holdfast.event where kind like '%dead_letter%' order by seq"
    )
    assert [one["kind"] for one in told] == [
        "dead_letter.opened",
        "dead_letter.retry_requested",
        "stateful_dead_letter_retry_requeued",
        "dead_letter.resolved",
    ]
    detail = json.loads(told[2]["detail"])
    assert detail["outcome"] == "requeued_for_dead_letter_retry"
    assert (detail["actor"], detail["reason"]) == ("ann", "fixed in 2.1")


async def test_resolved_letters_are_forgotten_with_history_and_unresolved_ones_never(harness, clock):
    from holdfast.engine.maintenance.retention import retain_once

    done, open_ = await a.a_failed_task(harness), await a.a_failed_task(harness)
    await harness.redrive(done)
    await harness.settle(await harness.claim_one(), Completed(b"1"))
    await clock.advance(seconds=9 * 86_400)
    await retain_once(harness.engine.database, days=7)
    assert not await harness.letters(done) and len(await harness.letters(open_)) == 1
