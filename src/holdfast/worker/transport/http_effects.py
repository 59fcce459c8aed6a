"""The effect store over HTTP: effects, steps, lease renewals and notes of attempts, each sent with the lease.

Requests come from many attempts at once. Each takes a connection from a small pool, and waits if all are in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar, assert_never

import msgspec

from holdfast.engine.effects.gate import PAUSES_SECONDS, AnswerEffect, GateDecision, OpenEffect, Sender
from holdfast.engine.effects.steps import KeepStep, RecallSteps, Steps, StoredStep
from holdfast.errors import HoldfastError, Unavailable
from holdfast.execution.effect_store import Answer, EffectStore, LeaseRenewed, Renew, Request, StepKept
from holdfast.execution.notes import Note, log
from holdfast.protocol.effects import EffectAnswer, GateAnswer, KeptStep, Recalled, WantedEffect
from holdfast.protocol.worker import NOTHING, AttemptNotes, LeaseProof, NotesRequest, WorkerNote
from holdfast.worker.transport.http_connection import HttpConnection, Server

T = TypeVar("T")

CONNECTIONS_MAX = 4
UNKNOWN_OUTCOME_CODES = (
    "server_unreachable",
    "database_unavailable",
    "outcome_unknown",
    "pool_exhausted",
    "client_closed",
)
"""Codes that do not say whether the request was executed: retry it."""


class _Renewal(msgspec.Struct, frozen=True):
    cancel_requested: bool


class HttpEffectStore(EffectStore):
    """The effect store of one worker, kept by a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._idle: list[HttpConnection] = []
        self._free_connections = asyncio.Semaphore(CONNECTIONS_MAX)

    async def ask(self, sender: Sender, request: Request) -> Answer:
        claimed = sender.claimed
        lease = {"task_id": str(claimed.task_id), "attempt": claimed.attempt, "lease_token": claimed.lease_token}
        match request:
            case OpenEffect():
                return await self._open(lease, request)
            case AnswerEffect():
                await self._answer(lease, request)
                return StepKept()
            case RecallSteps():
                return await self._recall(sender, lease)
            case KeepStep(step):
                body = KeptStep(**lease, name=step.name, digest=step.digest, output=msgspec.Raw(step.output))
                await self._post_with_retries("/internal/steps", body, dict[str, Any])
                return StepKept()
            case Renew():
                answer = await self._post_with_retries("/internal/heartbeat", LeaseProof(**lease), _Renewal)
                return LeaseRenewed(answer.cancel_requested)
            case _:
                assert_never(request)

    async def keep_notes(self, batch: list[Note]) -> None:
        """Store notes of attempts. Notes that the server cannot store are dropped."""
        notes = [
            AttemptNotes(
                str(note.claimed.task_id),
                note.claimed.attempt,
                note.claimed.lease_token,
                [WorkerNote(note.kind, msgspec.json.decode(note.detail))],  # type: ignore[arg-type]
            )
            for note in batch
        ]
        try:
            await self._post("/internal/progress", NotesRequest(notes), dict[str, Any])
        except Unavailable:
            raise
        except HoldfastError as error:
            log.warning("%s notes cannot be stored: %s", len(batch), error)

    def drop(self) -> None:
        for connection in self._idle:
            connection.drop()
        self._idle.clear()

    async def _open(self, lease: dict[str, Any], wanted: OpenEffect) -> GateDecision:
        body = WantedEffect(
            **lease,
            name=wanted.name,
            key=wanted.user_key,
            ordinal=wanted.ordinal,
            digest=wanted.digest,
            arguments=NOTHING if wanted.arguments is None else msgspec.Raw(wanted.arguments),
            compensation=wanted.compensation,
        )
        gate = await self._post_with_retries("/internal/effects", body, GateAnswer)
        receipt = None if gate.open or gate.refused else bytes(gate.receipt)
        return GateDecision(
            key=gate.idempotency_key, is_open=gate.open, receipt=receipt, code=gate.code, message=gate.message
        )

    async def _answer(self, lease: dict[str, Any], answer: AnswerEffect) -> None:
        body = EffectAnswer(
            **lease,
            idempotency_key=answer.key,
            state=answer.state.value,  # type: ignore[arg-type]
            receipt=NOTHING if answer.receipt is None else msgspec.Raw(answer.receipt),
            code=answer.code,
            message=answer.message,
        )
        await self._post_with_retries("/internal/effects/answer", body, dict[str, Any])

    async def _recall(self, sender: Sender, lease: dict[str, Any]) -> Steps:
        if sender.claimed.attempt == 1:
            return Steps([])
        recalled = await self._post_with_retries("/internal/steps/recall", LeaseProof(**lease), Recalled)
        return Steps([StoredStep(step.name, step.digest, bytes(step.output)) for step in recalled.steps])

    async def _post_with_retries(self, path: str, body: Any, kind: type[T]) -> T:
        """Send a request with a limited number of retries; every request may be repeated."""
        for pause in PAUSES_SECONDS:
            try:
                return await self._post(path, body, kind)
            except Unavailable as error:
                if error.code not in UNKNOWN_OUTCOME_CODES:
                    raise
            await asyncio.sleep(pause)
        return await self._post(path, body, kind)

    async def _post(self, path: str, body: Any, kind: type[T]) -> T:
        async with self._connection() as connection:
            return await connection.post(path, body, kind)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[HttpConnection]:
        async with self._free_connections:
            connection = self._idle.pop() if self._idle else HttpConnection(self._server)
            try:
                yield connection
            finally:
                self._idle.append(connection)
