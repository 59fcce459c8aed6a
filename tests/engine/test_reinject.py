"""`reinject_once` (S3): one letter in hand at a time, a lease on its task first, always released."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.engine.lifecycle.dead_letters.reinject import reinject_once
from holdfast.errors import Invalid
from holdfast.testing import factories as a


async def leases(harness):
    return await harness.engine.database.fetchval("select count(*) from holdfast.dead_lease")


async def hold(harness, task_id, holder="other"):
    await harness.engine.database.fetch(
        "insert into holdfast.dead_lease values ($1, $2, holdfast.instant() + interval '30 seconds')",
        int(task_id),
        holder,
    )


async def test_s3_the_oldest_dead_task_goes_back_to_its_queue(harness):
    task_id, other = await a.a_failed_task(harness), await a.a_failed_task(harness)
    done = await reinject_once(harness.engine, "w1", 30)
    assert (done.reinjected, done.task_id) == (True, task_id)
    assert ((await harness.task(task_id)).state, (await harness.task(other)).state) == ("queued", "failed")
    [letter] = await harness.letters(task_id)
    assert (letter.state, letter.actor) == ("retrying", "w1")
    assert await leases(harness) == 0


async def test_s3_an_empty_queue_is_no_error(harness):
    done = await reinject_once(harness.engine, "w1", 30)
    assert (done.reinjected, done.task_id) == (False, None)


async def test_s3_a_lease_held_by_another_hands_the_letter_back(harness):
    task_id = await a.a_failed_task(harness)
    await hold(harness, task_id)
    for _ in range(2):
        done = await reinject_once(harness.engine, "w1", 30)
        assert (done.reinjected, done.task_id) == (False, task_id)
    assert (await harness.task(task_id)).state == "failed"
    assert await leases(harness) == 1


async def test_s3_a_lease_that_lapsed_is_no_lease(harness, clock):
    task_id = await a.a_failed_task(harness)
    await hold(harness, task_id)
    await clock.advance(seconds=31)
    assert (await reinject_once(harness.engine, "w1", 30)).reinjected


async def test_s3_the_lease_is_released_when_the_work_fails(harness, monkeypatch):
    await a.a_failed_task(harness)

    async def broken(*_a, **_k):
        raise OSError("gone")

    monkeypatch.setattr("holdfast.engine.lifecycle.dead_letters.reinject.redrive_task", broken)
    with pytest.raises(Exception, match="gone"):
        await reinject_once(harness.engine, "w1", 30)
    assert await leases(harness) == 0


async def test_s3_a_letter_in_hand_is_out_of_sight_until_the_timeout(harness, clock):
    """As after a crash between taking the letter and putting the task back."""
    task_id = await a.a_failed_task(harness)
    await harness.engine.database.fetch(
        "update holdfast.dead_letter set hidden_until = holdfast.instant() + interval '30 seconds'"
    )
    assert (await reinject_once(harness.engine, "w1", 30)).task_id is None
    await clock.advance(seconds=31)
    assert (await reinject_once(harness.engine, "w1", 30)).task_id == task_id


async def test_s3_many_workers_reinject_each_task_once(harness):
    tasks = {await a.a_failed_task(harness) for _ in range(6)}
    done = await asyncio.gather(*(reinject_once(harness.engine, f"w{n}", 30) for n in range(9)))
    assert {one.task_id for one in done if one.reinjected} == tasks
    assert len([one for one in done if one.reinjected]) == 6


async def test_s3_a_task_that_is_no_longer_failed_is_left(harness):
    task_id = await a.a_failed_task(harness)
    await harness.redrive(task_id)
    await harness.engine.database.fetch("update holdfast.dead_letter set state = 'open'")
    done = await reinject_once(harness.engine, "w1", 30)
    assert (done.reinjected, done.task_id) == (False, task_id)
    assert (await harness.task(task_id)).generation == 2


@pytest.mark.parametrize("seconds", [0, -1, 50_000])
async def test_a_visibility_timeout_has_bounds(harness, seconds):
    with pytest.raises(Invalid):
        await reinject_once(harness.engine, "w1", seconds)
