"""One process for isolated attempts, seen from its worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable

from holdfast.execution.effect_store import Answer, Ask
from holdfast.worker.isolation.frames import (
    AppUnusable,
    AttemptEnded,
    AttemptRequest,
    Hello,
    NoteFrame,
    Ready,
    RequestAnswer,
    Start,
    StopAttempt,
    frame,
    receive,
)
from holdfast.worker.isolation.requests import error_frame
from holdfast.worker.supervisor import start_orders as wire_orders
from holdfast.worker.supervisor.start_orders import Orders

START_SECONDS_MAX = 120.0
END_SECONDS_MAX = 5.0


class Unstartable(Exception):
    """Raised when the process did not become ready to run attempts."""


class IsolatedProcess:
    """A child process: `start` it, `run` attempts one after another, `end` it."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._is_spent = False
        self._answering: set[asyncio.Task[None]] = set()

    async def start(self, orders: Orders) -> None:
        own_end, child_end = socket.socketpair()
        try:
            with child_end:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *("-m", "holdfast.worker.isolation.child", str(child_end.fileno()), str(os.getpid())),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=[child_end.fileno()],
                )
            self._reader, self._writer = await asyncio.open_connection(sock=own_end)
        finally:
            if self._writer is None:
                own_end.close()
        self._writer.write(frame(Hello(wire_orders.encode(orders))))
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                answer = await receive(self._reader)
        except TimeoutError:
            raise Unstartable(f"The process of the attempt was not ready in {START_SECONDS_MAX:g} s.") from None
        match answer:
            case Ready():
                return
            case AppUnusable(message):
                raise Unstartable(message)
            case _:
                await self._wait()
                raise Unstartable(f"The process of the attempt {self.how_it_died} while it loaded the app.")

    @property
    def is_usable(self) -> bool:
        return self._process is not None and self._process.returncode is None and not self._is_spent

    async def run(self, start: Start, note: Callable[[str, bytes], None], ask: Ask) -> AttemptEnded | None:
        """Run one attempt; None if the process died of it. Afterwards no code of the attempt runs any more."""
        assert self._reader is not None and self._writer is not None
        self._writer.write(frame(start))
        while True:
            match await receive(self._reader):
                case NoteFrame(kind, detail):
                    note(kind, detail)
                case AttemptRequest(number, request):
                    answering = asyncio.create_task(self._answer(number, ask(request)))
                    self._answering.add(answering)
                    answering.add_done_callback(self._answering.discard)
                case AttemptEnded() as ended:
                    self._is_spent = self._is_spent or ended.is_spent
                    return ended
                case _:
                    self.kill()
                    await self._wait()
                    return None

    async def _answer(self, number: int, answer: Awaitable[Answer]) -> None:
        """Answer one request. Every error is sent to the code that made the request."""
        assert self._writer is not None
        try:
            answered = RequestAnswer(number, answer=await answer)
        except Exception as error:  # noqa: BLE001 - the process waits for an answer, whatever it is
            answered = RequestAnswer(number, error=error_frame(error))
        if not self._writer.is_closing():
            self._writer.write(frame(answered))

    def ask_to_stop(self) -> None:
        assert self._writer is not None
        self._writer.write(frame(StopAttempt()))

    def signal(self, which: signal.Signals) -> None:
        """Signal the process and everything it started in its group."""
        assert self._process is not None
        self._is_spent = True
        # A new process may not lead its group yet, and a dead process may have left a group behind.
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(self._process.pid, which)

    def kill(self) -> None:
        if self._process is not None:
            self.signal(signal.SIGKILL)
        if self._writer is not None:
            self._writer.close()

    async def end(self) -> None:
        self.kill()
        await self._wait()

    @property
    def how_it_died(self) -> str:
        code = None if self._process is None else self._process.returncode
        if code is None:
            return "broke the connection"
        if code >= 0:
            return f"ended with exit code {code}"
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-code).name}{hint}"

    async def _wait(self) -> None:
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), END_SECONDS_MAX)
