"""Re-drive: what does a campaign over very many dead letters cost other work?

Tasks that fail for good become letters of one group. Then their fault is mended, and a campaign runs them all again, at
its own pace, while other tasks are drained beside it: twice during the campaign, once before and once after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.bench.app import mend
from holdfast.bench.drain import fill, pause, resume, tidy
from holdfast.bench.trial import Trial
from holdfast.bench.verified import violations
from holdfast.bench.waiting import LOOK_SECONDS, until
from holdfast.client.client import Client
from holdfast.core.campaign import CampaignState
from holdfast.dispatcher.campaigns import CampaignView, show_campaign, start_campaign
from holdfast.errors import Unavailable
from holdfast.store.catalog import DEFAULT_TENANT_ID

LETTERS, LETTERS_QUICK = 100_000, 2_000
OTHERS_MAX = 200_000
SECONDS_MAX = 900.0
BURY_CHUNK = 5_000

_LETTERS = "select count(*) from holdfast.dead_letter where state = 'open'"
_FINGERPRINT = "select fingerprint from holdfast.dead_letter limit 1"


async def measure_redrive(trial: Trial) -> dict[str, Any]:
    """Drains of other work, alone and beside a campaign; `ratio` says what of their rate they keep."""
    letters = LETTERS_QUICK if trial.is_quick else LETTERS
    tasks = min(trial.tasks, OTHERS_MAX)
    await trial.arena.fresh()
    trial.marks.clear()
    async with trial.client() as client, trial.workers():
        trial.say(f"redrive: {letters:,} tasks fail for good")
        await _bury(trial, client, letters)
        trial.say(f"redrive: {tasks:,} other tasks alone")
        alone = [await _others_per_s(trial, client, tasks)]
        trial.marks.hit(trial.marks.capacity - 1)
        campaign = await _start(trial, client)
        beside, moved = [], []
        for number in (1, 2):
            trial.say(f"redrive: {tasks:,} other tasks beside the campaign, {number}")
            before = (await _look(client, campaign)).released
            beside.append(await _others_per_s(trial, client, tasks))
            moved.append((await _look(client, campaign)).released - before)
        trial.say("redrive: the rest of the letters")
        over = await _until(client, campaign, lambda now: now.state == CampaignState.COMPLETED)
        trial.say(f"redrive: {tasks:,} other tasks alone again")
        alone.append(await _others_per_s(trial, client, tasks))
    alone_per_s, beside_per_s = sum(alone) / len(alone), sum(beside) / len(beside)
    seconds = (over.ended_at - over.started_at).total_seconds() if over.ended_at is not None else None
    return {
        "ratio": round(beside_per_s / alone_per_s, 4),
        "alone_per_s": round(alone_per_s, 1),
        "beside_per_s": round(beside_per_s, 1),
        "tasks": tasks,
        "letters": letters,
        "released_meanwhile": moved,
        "succeeded": over.succeeded,
        "campaign_seconds": seconds,
        "losses": letters - over.succeeded,
        "violations": await violations(trial.arena),
    }


async def _bury(trial: Trial, client: Client, letters: int) -> None:
    """Let tasks fail for good."""
    for start in range(0, letters, BURY_CHUNK):
        await client.enqueue_many(mend, [{"i": i} for i in range(start, min(start + BURY_CHUNK, letters))])
    async with trial.arena.connection() as connection, asyncio.timeout(SECONDS_MAX):
        buried = 0
        while buried < letters:
            await asyncio.sleep(LOOK_SECONDS)
            buried = await connection.fetchval(_LETTERS)


async def _start(trial: Trial, client: Client) -> int:
    """Start the campaign, and wait until its canary has come back."""
    fingerprint = str(await trial.arena.fetchval(_FINGERPRINT))
    trial.say("redrive: the canary of the campaign")
    began = await start_campaign(client.engine, DEFAULT_TENANT_ID, fingerprint, actor="bench", reason="measuring")
    campaign = int(began.campaign_id)
    await _until(client, campaign, lambda now: now.state == CampaignState.RAMP and now.released > now.canary)
    return campaign


async def _others_per_s(trial: Trial, client: Client, tasks: int) -> float:
    """From the opening of their queue to the start of the last of them."""
    trial.marks.forget(tasks)
    await pause(client)
    await fill(client, tasks)
    await tidy(trial)
    began_at = await resume(client)
    if not await until(lambda: not trial.marks.missing(tasks), seconds_max=SECONDS_MAX):
        raise Unavailable("Tasks beside a campaign did not end.", code="bench_stuck")
    return tasks / (max(trial.marks.started_at(i) for i in range(tasks)) - began_at)


async def _look(client: Client, campaign: int) -> CampaignView:
    return await show_campaign(client.engine, DEFAULT_TENANT_ID, campaign)


async def _until(client: Client, campaign: int, is_so: Callable[[CampaignView], bool]) -> CampaignView:
    async with asyncio.timeout(SECONDS_MAX):
        while not is_so(now := await _look(client, campaign)):
            if now.state == CampaignState.STOPPED:
                raise Unavailable(f"The campaign stopped: {now.note}", code="bench_stuck")
            await asyncio.sleep(LOOK_SECONDS)
    return now
