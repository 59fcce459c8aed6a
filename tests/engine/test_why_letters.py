"""`why` and `show` know of a task's dead letters: when it is sent again, who left it be, which campaign has it."""

from __future__ import annotations

import re

import pytest

from holdfast.core.dead_letters.dead_letter import DISPATCHES_MAX
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.campaigns.commands import start_campaign
from holdfast.engine.lifecycle.dead_letters.commands import ignore
from holdfast.engine.queries.explain_run import why
from holdfast.engine.queries.task_detail import show_task
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.testing import factories as a


@pytest.fixture
def ask(engine):
    async def ask(task_id: str):
        return await why(engine.database, engine.catalog, DEFAULT_TENANT_ID, int(task_id))

    return ask


async def fail_one(harness) -> None:
    await harness.settle(await harness.claim_one(), Failed(a.a_failure()))


async def letter_of(harness, task_id: str, state: str):
    [letter] = [one for one in await harness.letters(task_id) if one.state == state]
    return letter


async def test_in_its_backoff_the_next_dispatch_is_named(harness, ask, clock):
    task_id = await a.a_failed_task(harness)
    [letter] = await harness.letters(task_id)
    await harness.request(letter.fingerprint, actor="anna", reason="the bank is back")
    asked = await ask(task_id)
    assert asked.code == "redrive_waits"
    assert "is to be retried: anna requested its retry" in asked.headline and "the bank is back" in asked.headline
    for _ in range(2):
        await clock.advance(seconds=60)
        await harness.sweep_once()
        await fail_one(harness)
    found = await ask(task_id)
    told = f"Dead letter {letter.dead_letter_id} is being retried: dispatch 2 of {DISPATCHES_MAX} failed"
    assert told in found.headline and "for good" not in found.headline
    assert re.search(r"dispatch 3 of 5 follows in \d.* at \d{4}-", found.headline)
    assert not any("dead redrive" in move for move in found.moves)
    assert f"holdfast dead show {letter.dead_letter_id}" in found.moves
    await clock.advance(seconds=60)
    assert "follows at the sweep's next pass" in (await ask(task_id)).headline


async def test_a_task_that_is_under_way_again_says_who_sent_it(harness, ask):
    task_id = await a.a_failed_task(harness)
    await harness.redrive(task_id, actor="anna")
    assert any("dispatch 1 of 5 by anna" in line for line in (await ask(task_id)).evidence)
    await harness.settle(await harness.claim_one(), Completed(b"1"))
    assert not any("letter" in line for line in (await ask(task_id)).evidence)


async def test_ignored_by_whom_and_why(harness, engine, ask):
    task_id = await a.a_failed_task(harness)
    await ignore(engine, DEFAULT_TENANT_ID, task_id=int(task_id), actor="anna", reason="a test order")
    found = await ask(task_id)
    assert re.search(r"Dead letter \d+ was ignored by anna .* ago: a test order\.", found.headline)
    assert found.headline.startswith("Failed for good")
    assert any("dead redrive" in move or "task retry" in move for move in found.moves)


async def test_a_parked_letter_says_so(harness, ask, clock):
    task_id = await a.a_failed_task(harness)
    await harness.request((await harness.letters(task_id))[0].fingerprint)
    for _ in range(DISPATCHES_MAX):
        await harness.sweep_once()
        await fail_one(harness)
        await clock.advance(seconds=300)
    await harness.sweep_once()
    headline = (await ask(task_id)).headline
    assert "was parked" in headline and "after 5 dispatches" in headline


async def test_the_campaign_is_named(harness, engine, ask):
    first, second = [await a.a_failed_task(harness) for _ in range(2)]
    fingerprint = (await letter_of(harness, first, "open")).fingerprint
    assert "is open: no action was taken on it yet" in (await ask(first)).headline
    campaign_id = (
        await start_campaign(
            engine, DEFAULT_TENANT_ID, fingerprint, name="bank", actor="anna", reason="fixed", canary=1
        )
    ).campaign_id
    named = f"campaign {campaign_id} (bank)"
    waiting = await ask(second)
    assert f"is open and in {named}" in waiting.headline
    assert f"holdfast campaign show {campaign_id}" in waiting.moves
    await harness.campaigns_once()
    assert any(f"is being retried in {named}" in line for line in (await ask(first)).evidence)
    await fail_one(harness)
    assert "has not yet recorded that it failed again" in (await ask(first)).headline
    await harness.campaigns_once()
    assert f"came back from {named}" in (await ask(first)).headline


async def test_show_names_the_letter(harness, engine):
    task_id = await a.a_failed_task(harness)
    [letter] = await harness.letters(task_id)
    view = await show_task(engine.database, engine.catalog, DEFAULT_TENANT_ID, int(task_id))
    assert view.dead_letter_id == letter.dead_letter_id
    assert view.dead_letter == f"Dead letter {letter.dead_letter_id} is open: no action was taken on it yet."
    await harness.redrive(task_id)
    await harness.settle(await harness.claim_one(), Completed(b"1"))
    view = await show_task(engine.database, engine.catalog, DEFAULT_TENANT_ID, int(task_id))
    assert (view.dead_letter_id, view.dead_letter) == (None, None)
