"""Effects behind their gate, stored steps, and heartbeats on demand, for one attempt.

Coroutines and plain code share one implementation: for plain code the requests block, so the same coroutine runs to its
end without an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any

from holdfast.authoring.action import Action
from holdfast.codec import json_codec
from holdfast.core.effects.effect import EffectState, blame
from holdfast.core.tasks.failure import failure_of
from holdfast.core.values import bounds
from holdfast.engine.effects.gate import AnswerEffect, GateDecision, OpenEffect
from holdfast.engine.effects.steps import KeepStep, RecallSteps, Steps, StoredStep
from holdfast.errors import EffectRefused, HoldfastError, Invalid, Unavailable
from holdfast.execution.effect_store import Ask, LeaseRenewed, Renew
from holdfast.execution.threads import in_thread

KEY_PARAMETER = "idempotency_key"
COMPENSATION_INPUT = {"effect": None}


class EffectRunner:
    """Effects and steps of one attempt. `is_blocking`: its code is plain and blocks while it waits."""

    _is_recalled = False

    def __init__(self, ask: Ask, *, is_blocking: bool, stop: threading.Event, bytes_max: int) -> None:
        self.ask = ask
        self._is_blocking = is_blocking
        self._stop = stop
        self._bytes_max = bytes_max
        self._begun: dict[str, int] = {}
        self._sending: set[tuple[str, str]] = set()
        self._known: dict[tuple[str, bytes], bytes] = {}

    def afresh(self) -> EffectRunner:
        """Return a copy for another call of the action in this attempt, which counts its effects from the first."""
        again = copy.copy(self)
        again._begun = {}
        return again

    def awaited(self, ask: Ask) -> EffectRunner:
        """Return a copy for an executor on an event loop around plain code; both share steps and pending effects."""
        again = self.afresh()
        again.ask = ask
        again._is_blocking = False
        return again

    def effect(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        key: str | None,
        compensate: Any,
    ) -> Any:
        bounds.valid_effect(name)
        if KEY_PARAMETER in kwargs:
            raise Invalid(
                f"{name}: {KEY_PARAMETER} is passed by the engine.", code="invalid_effect", advice="Use key=."
            )
        arguments = self._canonical(name, args, kwargs)
        compensation = _compensation(compensate)
        ordinal = 0
        if key is None:
            ordinal = self._begun.get(name, 0)
            self._begun[name] = ordinal + 1
        wanted = OpenEffect(
            name=name,
            user_key=None if key is None else bounds.valid_key(key),
            ordinal=ordinal,
            digest=hashlib.sha256(arguments).digest(),
            compensation=compensation,
            arguments=None if compensation is None else arguments,
        )
        return self._run(self._effect(wanted, function, args, kwargs))

    def step(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        digest = hashlib.sha256(self._canonical(bounds.valid_effect(name), args, kwargs)).digest()
        return self._run(self._step(name, digest, function, args, kwargs))

    def heartbeat(self) -> Any:
        return self._run(self._heartbeat())

    async def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the user's function, plain or async, without blocking anything but this attempt."""
        if self._is_blocking:
            value = function(*args, **kwargs)
            return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value
        if inspect.iscoroutinefunction(function):
            return await function(*args, **kwargs)
        value = await in_thread(function, args, kwargs, self._stop)
        return await value if inspect.isawaitable(value) else value

    async def _effect(
        self, wanted: OpenEffect, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        mark = (wanted.name, wanted.user_key or f"#{wanted.ordinal}")
        if mark in self._sending:
            raise Unavailable(
                f"This attempt is sending {wanted.name} under that key already.",
                code="effect_in_flight",
                advice="Wait for the first, or use another key for the second.",
            )
        self._sending.add(mark)
        try:
            gate = await self.ask(wanted)
            assert isinstance(gate, GateDecision)
            if gate.receipt is not None:
                return json_codec.decode(gate.receipt)
            with _at_fault(gate.key):
                if not gate.is_open:
                    raise EffectRefused(gate.message, code=gate.code)
                return await self._send(gate.key, wanted.name, function, args, kwargs)
        finally:
            self._sending.discard(mark)

    async def _send(
        self,
        key: str,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        keyword_arguments = {**kwargs, KEY_PARAMETER: key} if takes_key(function) else kwargs
        try:
            value = await self.call(function, args, keyword_arguments)
            receipt = json_codec.encode(value, bytes_max=self._bytes_max, what=f"receipt of {name}")
        except EffectRefused as refusal:
            await self.ask(AnswerEffect(key=key, state=EffectState.REFUSED, code=refusal.code, message=refusal.detail))
            raise
        except Exception as error:
            # The original error matters more than a failure to record it; without the record the row also says unknown.
            with contextlib.suppress(HoldfastError):
                failure = failure_of(error)
                message = f"{failure.type}: {failure.message}"
                await self.ask(AnswerEffect(key=key, state=EffectState.UNKNOWN, code=failure.code, message=message))
            raise
        await self.ask(AnswerEffect(key=key, state=EffectState.DONE, receipt=receipt))
        return json_codec.decode(receipt)

    async def _step(
        self,
        name: str,
        digest: bytes,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        if not self._is_recalled:
            recalled = await self.ask(RecallSteps())
            assert isinstance(recalled, Steps)
            self._known.update({(step.name, step.digest): step.output for step in recalled.steps})
            self._is_recalled = True
        if (known := self._known.get((name, digest))) is None:
            value = await self.call(function, args, kwargs)
            known = json_codec.encode(value, bytes_max=self._bytes_max, what=f"result of the step {name}")
            await self.ask(KeepStep(StoredStep(name, digest, known)))
            known = self._known.setdefault((name, digest), known)
        return json_codec.decode(known)

    async def _heartbeat(self) -> bool:
        answer = await self.ask(Renew())
        assert isinstance(answer, LeaseRenewed)
        if answer.is_canceled:
            self._stop.set()
        return not self._stop.is_set()

    def _canonical(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        try:
            return json_codec.canonical([args, kwargs], bytes_max=self._bytes_max, what="arguments")
        except Invalid as error:
            raise Invalid(
                f"{name}: {error.detail}",
                code=error.code,
                advice="Arguments identify a call; pass clients and files through a closure or partial().",
            ) from error

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        if not self._is_blocking:
            return work
        try:
            work.send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("blocking code runs without a loop")


@contextlib.contextmanager
def _at_fault(key: str) -> Iterator[None]:
    """Attribute an error raised in the block to this effect."""
    try:
        yield
    except Exception as error:
        blame(error, key)
        raise


def takes_key(function: Callable[..., Any]) -> bool:
    """Return whether the function of an effect accepts its idempotency key."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    named = parameters.get(KEY_PARAMETER)
    if named is not None and named.kind is not named.POSITIONAL_ONLY:
        return True
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def _compensation(compensate: Any) -> str | None:
    """Return the name of the action that undoes an effect. A worker runs it, so a plain function is refused."""
    if compensate is None:
        return None
    if isinstance(compensate, Action):
        compensate.signature.check(compensate.name, [COMPENSATION_INPUT])
        return compensate.name
    if not isinstance(compensate, str):
        raise Invalid(
            "compensate= must be an action or the name of one.",
            code="invalid_effect",
            advice="Register the function with @app.action; it gets one argument, `effect`.",
        )
    return bounds.valid_action(compensate)


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value
