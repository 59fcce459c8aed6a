"""Re-drive: what a campaign over very many dead letters costs other work.

Tasks that fail for good become dead letters of one group. Then the fault is fixed, and a campaign re-drives them all at
its own rate. Other tasks are drained alternately alone and during the campaign: while the queue of the dead letters is
paused the campaign waits, so both are measured within one minute, on the same tables.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.client.client import Client
from holdfast.core.dead_letters.campaign import CampaignState
from holdfast.engine.campaigns.commands import CampaignView, show_campaign, start_campaign
from holdfast.errors import Unavailable
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast_bench.app import MENDED_QUEUE, mend
from holdfast_bench.drain import fill, pause, resume, tidy
from holdfast_bench.spread import spread
from holdfast_bench.trial import Trial
from holdfast_bench.verified import violations
from holdfast_bench.waiting import LOOK_SECONDS, until

LETTERS, LETTERS_QUICK = 100_000, 2_000
OTHERS_MAX = 200_000
PAIRS = 3
WARM_SHARE = 0.05
"""The share of dead letters that a campaign releases before anything is measured, because it starts slowly."""
SECONDS_MAX = 900.0
BURY_CHUNK = 5_000

_LETTERS = "select count(*) from holdfast.dead_letter where state = 'open'"
_FINGERPRINT = "select fingerprint from holdfast.dead_letter limit 1"
_MENDED_RUNS = """
select exists (
  select from holdfast.live t
  join holdfast.lane l on l.lane_id = t.lane_id
  where t.state = 'r' and l.action = $1
)
"""


class Pair(msgspec.Struct):
    """Two drains of other work, and how many dead letters were released during the second.

    `seconds` is how long the campaign could run.
    """

    alone_per_s: float = 0.0
    beside_per_s: float = 0.0
    released: int = 0
    seconds: float = 0.0


async def measure_redrive(trial: Trial) -> dict[str, Any]:
    """Measure drains of other work, alternately alone and during a campaign; `ratio` is the share of its rate kept."""
    letters = LETTERS_QUICK if trial.is_quick else LETTERS
    tasks = min(trial.tasks, OTHERS_MAX)
    await trial.arena.fresh()
    trial.marks.clear()
    async with trial.client() as client, trial.workers():
        trial.say(f"redrive: {letters:,} tasks fail for good")
        await _retire_worker(trial, client, letters)
        trial.marks.hit(trial.marks.capacity - 1)
        campaign = await _start(trial, client, letters)
        pairs = [await _pair(trial, client, campaign, tasks, number) for number in range(1, PAIRS + 1)]
        trial.say("redrive: the rest of the letters")
        began_at = await resume(client, MENDED_QUEUE)
        over = await _until(client, campaign, lambda now: now.state == CampaignState.COMPLETED)
        seconds = time.monotonic() - began_at + sum(pair.seconds for pair in pairs)
    ratios = [pair.beside_per_s / pair.alone_per_s for pair in pairs]
    return {
        "ratio": round(spread(ratios).median, 4),
        "alone_per_s": round(spread(pair.alone_per_s for pair in pairs).median, 1),
        "beside_per_s": round(spread(pair.beside_per_s for pair in pairs).median, 1),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "tasks": tasks,
        "letters": letters,
        "released_meanwhile": [pair.released for pair in pairs],
        "succeeded": over.succeeded,
        "campaign_seconds": round(seconds, 1),
        "losses": letters - over.succeeded,
        "violations": await violations(trial.arena),
    }


async def _pair(trial: Trial, client: Client, campaign: int, tasks: int, number: int) -> Pair:
    """Run one drain alone and one during the campaign, in alternating order, because conditions change over time."""
    pair = Pair()
    for is_beside in (False, True) if number % 2 else (True, False):
        trial.say(f"redrive: {tasks:,} other tasks {'beside the campaign' if is_beside else 'alone'}, {number}")
        await _stand_by(trial, client, tasks)
        if not is_beside:
            pair.alone_per_s = await _others_per_s(trial, client, tasks)
            continue
        began_at = await _go_on(client, campaign)
        before = (await _look(client, campaign)).released
        pair.beside_per_s = await _others_per_s(trial, client, tasks)
        pair.released = (await _look(client, campaign)).released - before
        await pause(client, MENDED_QUEUE)
        pair.seconds = time.monotonic() - began_at
    return pair


async def _retire_worker(trial: Trial, client: Client, letters: int) -> None:
    """Let tasks fail for good."""
    for start in range(0, letters, BURY_CHUNK):
        await client.enqueue_many(mend, [{"i": i} for i in range(start, min(start + BURY_CHUNK, letters))])
    async with trial.arena.connection() as connection, asyncio.timeout(SECONDS_MAX):
        buried = 0
        while buried < letters:
            await asyncio.sleep(LOOK_SECONDS)
            buried = await connection.fetchval(_LETTERS)


async def _start(trial: Trial, client: Client, letters: int) -> int:
    """Start the campaign, and wait until it has reached its full rate."""
    fingerprint = str(await trial.arena.fetchval(_FINGERPRINT))
    trial.say("redrive: the canary of the campaign")
    began = await start_campaign(client.engine, DEFAULT_TENANT_ID, fingerprint, actor="bench", reason="measuring")
    campaign = int(began.campaign_id)
    await _until(client, campaign, lambda now: now.state == CampaignState.RAMP and now.released > letters * WARM_SHARE)
    await pause(client, MENDED_QUEUE)
    return campaign


async def _go_on(client: Client, campaign: int) -> float:
    """Let the campaign continue, and wait until it releases tasks or ends; return when that began."""
    before = (await _look(client, campaign)).released
    began_at = await resume(client, MENDED_QUEUE)
    await _until(client, campaign, lambda now: now.released > before or now.state == CampaignState.COMPLETED)
    return began_at


async def _stand_by(trial: Trial, client: Client, tasks: int) -> None:
    """Enqueue other tasks, while their queue and that of the dead letters are paused and nothing runs."""
    trial.marks.forget(tasks)
    await pause(client)
    await fill(client, tasks)
    await tidy(trial)
    async with trial.arena.connection() as connection, asyncio.timeout(SECONDS_MAX):
        runs = await connection.fetchval(_MENDED_RUNS, mend.name)
        while runs:
            await asyncio.sleep(LOOK_SECONDS)
            runs = await connection.fetchval(_MENDED_RUNS, mend.name)


async def _others_per_s(trial: Trial, client: Client, tasks: int) -> float:
    """Return the rate from the resuming of their queue to the start of the last task."""
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
