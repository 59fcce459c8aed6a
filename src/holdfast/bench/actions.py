"""The actions under measurement: they only leave a mark. Client and workers build the same app from here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from holdfast.action import Action
from holdfast.app import App
from holdfast.bench.marks import Marks
from holdfast.settings import Settings

QUEUE = "bench"
OTHER_QUEUE = "bench_other"
HANG_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchActions:
    """`hit` marks and returns; `hang` marks and, the first time, never returns; no worker serves `other`."""

    app: App
    hit: Action[..., Any]
    hang: Action[..., Any]
    other: Action[..., Any]


def bench_actions(settings: Settings, marks: Marks) -> BenchActions:
    app = App("bench", settings=settings)

    @app.action(queue=QUEUE)
    async def hit(i: int) -> None:
        marks.hit(i)

    @app.action(queue=QUEUE)
    async def hang(i: int) -> None:
        if marks.hit(i) == 0:
            await asyncio.sleep(HANG_SECONDS)

    @app.action(queue=OTHER_QUEUE)
    async def other(i: int) -> None:
        marks.hit(i)

    return BenchActions(app=app, hit=hit, hang=hang, other=other)
