"""Endpoints for effects, steps and notes of remote attempts, each authorized by the attempt's lease."""

from __future__ import annotations

import hashlib

import msgspec
from starlette.responses import Response

from holdfast.codec import json_codec
from holdfast.core.effects.effect import EffectState
from holdfast.core.values import bounds
from holdfast.engine.effects.gate import AnswerEffect, OpenEffect
from holdfast.engine.effects.steps import StoredStep
from holdfast.errors import Invalid
from holdfast.protocol.effects import EffectAnswer, GateAnswer, KeptStep, Recalled, StepStored, StepView, WantedEffect
from holdfast.protocol.worker import NOTHING, LeaseProof, NotesAnswer, NotesRequest
from holdfast.server.endpoint import ApiRequest, reply, worker_call
from holdfast.server.worker_api.notes import EVENTS_MAX, notes_of
from holdfast.server.worker_api.reports import ENVELOPE_BYTES, lease_of, plain

DIGEST_BYTES = 32
PROGRESS_BYTES_MAX = 32 * 1024 * 1024


async def open_effect(request: ApiRequest) -> Response:
    """Open the gate of one effect, or return its earlier result."""
    bytes_max = request.engine.settings.limits.output_bytes_max
    body = await request.body(WantedEffect, bytes_max=bytes_max + ENVELOPE_BYTES)
    if body.ordinal < 0 or body.ordinal >= 2**31:
        raise Invalid(f"There is no effect number {body.ordinal}.", code="invalid_effect")
    wanted = OpenEffect(
        name=bounds.valid_effect(body.name),
        user_key=None if body.key is None else bounds.valid_key(body.key),
        ordinal=0 if body.key is not None else body.ordinal,
        digest=_digest(body.digest, body.arguments, bytes_max),
        compensation=None if body.compensation is None else bounds.valid_action(body.compensation),
        arguments=None if body.compensation is None else _canonical(body.arguments, bytes_max),
    )
    gate = await request.workers.effect_store.open_effect(lease_of(body), wanted)
    return reply(
        GateAnswer(
            idempotency_key=gate.key,
            open=gate.is_open,
            refused=not gate.is_open and gate.receipt is None,
            receipt=NOTHING if gate.receipt is None else msgspec.Raw(gate.receipt),
            code=gate.code,
            message=gate.message,
        )
    )


async def answer_effect(request: ApiRequest) -> Response:
    """Record the receipt of an effect, its refusal, or that its outcome is unknown."""
    bytes_max = request.engine.settings.limits.output_bytes_max
    body = await request.body(EffectAnswer, bytes_max=bytes_max + ENVELOPE_BYTES)
    state = EffectState(body.state)
    receipt: bytes | None = None
    if state is EffectState.DONE:
        receipt = plain(body.receipt, bytes_max=bytes_max, what="receipt")
    answer = AnswerEffect(
        key=bounds.valid_key(body.idempotency_key), state=state, receipt=receipt, code=body.code, message=body.message
    )
    await request.workers.effect_store.answer_effect(lease_of(body), answer)
    return reply(StepStored())


async def recall_steps(request: ApiRequest) -> Response:
    """Return the steps that earlier attempts of this task recorded."""
    body = await request.body(LeaseProof)
    steps = await request.workers.effect_store.recall_steps(lease_of(body))
    return reply(Recalled([StepView(step.name, step.digest, msgspec.Raw(step.output)) for step in steps]))


async def keep_step(request: ApiRequest) -> Response:
    """Record the result of one step for later attempts."""
    bytes_max = request.engine.settings.limits.output_bytes_max
    body = await request.body(KeptStep, bytes_max=2 * bytes_max + ENVELOPE_BYTES)
    step = StoredStep(
        bounds.valid_effect(body.name),
        _digest(body.digest, body.arguments, bytes_max),
        plain(body.output, bytes_max=bytes_max, what="output"),
    )
    await request.workers.effect_store.keep_step(lease_of(body), step)
    return reply(StepStored())


async def progress(request: ApiRequest) -> Response:
    """Record notes of running attempts. Notes after the lease's end are dropped; repeated notes are stored twice."""
    body = await request.body(NotesRequest, bytes_max=PROGRESS_BYTES_MAX)
    if sum(len(spoken.events or ()) for spoken in body.notes) > EVENTS_MAX:
        raise Invalid(f"At most {EVENTS_MAX} notes at once.", code="invalid_batch")
    said = [(lease_of(spoken), *note) for spoken in body.notes for note in notes_of(spoken.events)]
    await request.workers.effect_store.note(said)
    return reply(NotesAnswer(len(said)))


def _digest(sent_digest: bytes | None, arguments: msgspec.Raw, bytes_max: int) -> bytes:
    """Return the digest of a call's arguments: the given one, or computed as Python workers do."""
    if sent_digest is None:
        return hashlib.sha256(_canonical(arguments, bytes_max)).digest()
    if len(sent_digest) != DIGEST_BYTES:
        raise Invalid("A digest is SHA-256 in base64.", code="invalid_digest", advice="Or send the arguments.")
    return sent_digest


def _canonical(arguments: msgspec.Raw, bytes_max: int) -> bytes:
    sent_digest = plain(arguments, bytes_max=bytes_max, what="arguments")
    return json_codec.canonical(json_codec.decode(sent_digest), bytes_max=bytes_max, what="arguments")


ENDPOINTS = (
    worker_call("/internal/effects", open_effect, takes=WantedEffect, answers=GateAnswer),
    worker_call("/internal/effects/answer", answer_effect, takes=EffectAnswer, answers=StepStored),
    worker_call("/internal/steps", keep_step, takes=KeptStep, answers=StepStored),
    worker_call("/internal/steps/recall", recall_steps, takes=LeaseProof, answers=Recalled),
    worker_call("/internal/progress", progress, takes=NotesRequest, answers=NotesAnswer),
)
