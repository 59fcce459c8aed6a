"""Pass events to reporters, which are user code, without letting it delay or end anything of the engine.

Each reporter is imported, created, called and closed in its own thread and event loop, so one that blocks or ends its
loop harms only itself. Every outcome becomes a value: accepted, or why not. Only the type of an exception is reported,
because its message may contain what the operator knows and a tenant must not; the log has all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from inspect import isawaitable
from typing import Any

from holdfast.codec.reporters import Reported, Reporter, allowed_reference
from holdfast.core.tasks.failure import storable_text
from holdfast.errors import Invalid
from holdfast.net.guarded_request import NotReached
from holdfast.settings.settings import Settings

CLOSE_SECONDS_MAX = 5.0
NAME_BYTES_MAX = 60
Trouble = NotReached | Invalid | None
"""Why an event was not accepted: the reporter failed, or this process cannot use it; None if it was accepted."""

log = logging.getLogger("holdfast.webhooks")


class Reporters:
    """The reporters of one process, each created when first needed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._apart: dict[str, _ReporterThread] = {}

    async def report(self, url: str, event: Reported) -> None:
        """Return once the event is accepted; `NotReached` if it was not, `Invalid` if this process cannot try."""
        reference = allowed_reference(url, self._settings)
        held = self._apart.get(reference)
        if held is None or held.is_over:
            try:
                held = self._apart[reference] = _ReporterThread(reference)
            except (OSError, RuntimeError) as error:
                raise NotReached(f"no thread for it could be started: {error}") from error
        trouble = await held.ask(held.report(event), self._settings.webhooks.timeout_seconds)
        if trouble is not None:
            raise trouble

    async def close(self) -> None:
        """Close all reporters, with a time limit for each."""
        held, self._apart = self._apart, {}
        await asyncio.gather(*(one.close() for one in held.values()))


class _ReporterThread:
    """One reporter and its thread. `ask` and `close` are called from the main thread; the rest runs in the
    reporter's."""

    def __init__(self, reference: str) -> None:
        self._reference = reference
        self.is_over = False
        """Whether its code ended the event loop, as `SystemExit` in a task of its own does."""
        self._made: Reporter | None = None
        self._stop = asyncio.Event()
        self._ended: Future[None] = Future()
        self._loop = asyncio.new_event_loop()
        # A daemon thread: a reporter that does not return must not delay the end of the process.
        thread = threading.Thread(target=self._live, name=f"holdfast-{reference}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._loop.close()
            raise

    async def ask(self, work: Coroutine[Any, Any, Trouble], seconds_max: float) -> Trouble:
        """Run a coroutine in the reporter's loop, with a time limit, and return its outcome."""
        try:
            answer = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        except RuntimeError:
            work.close()
            return NotReached("its event loop ended")
        try:
            await asyncio.wait([answer], timeout=seconds_max)
            if not answer.done():
                return NotReached(f"no answer within {seconds_max:g} s")
            return NotReached("its event loop ended") if answer.cancelled() else answer.result()
        finally:
            answer.cancel()

    async def close(self) -> None:
        """Close the reporter and end the thread; one that does not answer is abandoned."""
        trouble = await self.ask(self._close(), CLOSE_SECONDS_MAX)
        with contextlib.suppress(RuntimeError):  # its loop is closed already
            self._loop.call_soon_threadsafe(self._stop.set)
        if trouble is not None:
            log.warning("reporter %s was not closed: %s", self._reference, trouble)
            return
        ended = asyncio.wrap_future(self._ended)
        try:
            await asyncio.wait([ended], timeout=CLOSE_SECONDS_MAX)
        finally:
            ended.cancel()

    async def report(self, event: Reported) -> Trouble:
        """Pass on one event; create the reporter first if needed."""
        if self._made is None and (trouble := self._make()) is not None:
            return trouble
        assert self._made is not None
        try:
            answer: object = self._made.report(event)
            if not isawaitable(answer):
                return NotReached("its report() is not `async def`")
            await answer
        except BaseException as error:  # noqa: BLE001 - user code may raise anything, even to end the process
            return self._raised("its report()", error)
        return None

    def _make(self) -> Trouble:
        try:
            factory = _imported(self._reference)
        except BaseException as error:
            log.warning("reporter %s cannot be imported", self._reference, exc_info=error)
            return Invalid(
                f"The reporter {self._reference} cannot be imported here: {_kind(error)}.",
                code="reporter_unusable",
                advice="The log of this process says why.",
            )
        try:
            made = factory()
            if not callable(getattr(made, "report", None)):
                return NotReached("what its factory made has no report()")
        except BaseException as error:  # noqa: BLE001 - as above
            return self._raised("its factory", error)
        self._made = made
        return None

    async def _close(self) -> Trouble:
        try:
            close = getattr(self._made, "close", None)
            if close is not None and isawaitable(answer := close()):
                await answer
        except BaseException as error:  # noqa: BLE001 - as above
            return self._raised("its close()", error)
        return None

    def _raised(self, what: str, error: BaseException) -> NotReached:
        task = asyncio.current_task()
        if not (isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling()):
            log.warning("reporter %s: %s failed", self._reference, what, exc_info=error)
        return NotReached(f"{what} raised {_kind(error)}")

    def _live(self) -> None:
        try:
            # On exit the runner cancels what still runs, waits for it, and closes the loop.
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._until_stopped())
        except BaseException as error:
            # One of the reporter's own tasks raised it or stopped the loop; the next event creates another reporter.
            log.warning("reporter %s ended its event loop", self._reference, exc_info=error)
        finally:
            with contextlib.suppress(InvalidStateError):
                self._ended.set_result(None)

    async def _until_stopped(self) -> None:
        try:
            await self._stop.wait()
        finally:
            self.is_over = True


def _imported(reference: str) -> Callable[[], Any]:
    module, _, attribute = reference.partition(":")
    found: Callable[[], Any] = getattr(importlib.import_module(module), attribute)
    return found


def _kind(error: BaseException) -> str:
    return storable_text(type(error).__name__, NAME_BYTES_MAX)
