"""The effect store: where an attempt's effects, steps and lease renewals are recorded, wherever its code runs.

A coroutine sends requests on the worker's event loop, a thread through that loop, an isolated process over its socket.
The requests are the same values; only the worker has the connections and proves the lease.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TypeAlias, assert_never

import msgspec

from holdfast.engine.effects.gate import AnswerEffect, GateDecision, OpenEffect, Sender, answer_effect, open_effect
from holdfast.engine.effects.steps import KeepStep, RecallSteps, Steps, keep_step, recall_steps
from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle.tasks.heartbeat import renew


class Renew(msgspec.Struct, frozen=True, tag=True):
    """Extend the lease now."""


class LeaseRenewed(msgspec.Struct, frozen=True, tag=True):
    """The lease was extended; `is_canceled` asks the attempt to stop."""

    is_canceled: bool


class StepKept(msgspec.Struct, frozen=True, tag=True):
    """The request was recorded."""


Request: TypeAlias = OpenEffect | AnswerEffect | RecallSteps | KeepStep | Renew
Answer: TypeAlias = GateDecision | Steps | StepKept | LeaseRenewed
Ask: TypeAlias = Callable[[Request], Awaitable[Answer]]


class EffectStore(ABC):
    """The effect store of one worker, in the database or behind a server."""

    @abstractmethod
    async def ask(self, sender: Sender, request: Request) -> Answer:
        """Execute a request of a running attempt, under its lease."""

    def request_on_loop(self, sender: Sender) -> Ask:
        """Return the request function for code on the worker's event loop and for requests of isolated processes."""
        return lambda request: self.ask(sender, request)

    def request_from_thread(self, sender: Sender) -> Ask:
        """Return the request function for code in a thread. It blocks that thread, so awaiting it never suspends."""
        loop = asyncio.get_running_loop()

        async def ask(request: Request) -> Answer:
            return asyncio.run_coroutine_threadsafe(self.ask(sender, request), loop).result()

        return ask


class DatabaseEffectStore(EffectStore):
    """The effect store in the worker's own database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def ask(self, sender: Sender, request: Request) -> Answer:
        database, claimed = self._engine.database, sender.claimed
        match request:
            case OpenEffect():
                return await open_effect(database, self._engine.catalog, sender, request)
            case AnswerEffect():
                await answer_effect(database, claimed, request)
                return StepKept()
            case RecallSteps():
                return Steps(await recall_steps(database, claimed))
            case KeepStep(step):
                await keep_step(database, claimed, step)
                return StepKept()
            case Renew():
                return LeaseRenewed(await renew(database, claimed, self._engine.settings.worker.lease_seconds))
            case _:
                assert_never(request)
