"""Leases to act under, and a provider that keeps count."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.core.effects.effect import EffectState
from holdfast.engine.effects.gate import AnswerEffect, GateDecision, OpenEffect, Sender, answer_effect, open_effect
from holdfast.engine.engine import Engine
from holdfast.server.worker_api.effect_calls import LeaseKey, RemoteEffects
from holdfast.testing.engine_harness import HeldLease


@dataclass
class Provider:
    """The other side: answers each call, and remembers under which keys it was called."""

    keys: list[str] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)

    def send(self, *args: Any, idempotency_key: str) -> dict[str, Any]:
        self.keys.append(idempotency_key)
        answer = self.answers.pop(0) if self.answers else {"id": len(self.keys), "sent": list(args)}
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def send_async(self, *args: Any, idempotency_key: str) -> dict[str, Any]:
        return self.send(*args, idempotency_key=idempotency_key)


@pytest.fixture
def provider() -> Provider:
    return Provider()


class Outbox:
    """The gate and the answer by hand, for the lease one likes; `is_remote` as a server asks for a worker elsewhere."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.is_remote = False

    async def open(self, lease: HeldLease, name: str = "smtp.send", **options: Any) -> GateDecision:
        wanted = OpenEffect(**{"name": name, "user_key": "k", "ordinal": 0, "digest": b"same", **options})
        if self.is_remote:
            return await RemoteEffects(self._engine).open_effect(_held(lease), wanted)
        sender = Sender(claimed=lease.claimed, tenant="default")
        return await open_effect(self._engine.database, self._engine.catalog, sender, wanted)

    async def answer(self, lease: HeldLease, gate: GateDecision, state: str = "done", **options: Any) -> None:
        given = {"receipt": b"7"} if state == "done" and "receipt" not in options else {}
        answer = AnswerEffect(key=gate.key, state=EffectState(state), **given, **options)
        if self.is_remote:
            return await RemoteEffects(self._engine).answer_effect(_held(lease), answer)
        await answer_effect(self._engine.database, lease.claimed, answer)
        return None


def _held(lease: HeldLease) -> LeaseKey:
    return (lease.claimed.task_id, lease.claimed.attempt, lease.claimed.lease_token)


@pytest.fixture
def outbox(engine: Engine) -> Outbox:
    return Outbox(engine)
