"""Messages between a worker and a process for isolated attempts: MessagePack frames with a length prefix."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from holdfast.core.datasets.dataset import Commit
from holdfast.core.tasks.failure import Failure
from holdfast.core.tasks.outcome import Completed, Failed, Lost
from holdfast.execution.effect_store import Answer, Request

_LENGTH = struct.Struct("!I")


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Worker to process: the start orders, as a supervisor gives them to a worker."""

    orders: bytes


class Start(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Worker to process: run this attempt."""

    action: str
    input: bytes
    task_id: str
    attempt: int
    lease_token: str
    tenant: str
    queue: str
    tags: tuple[str, ...]
    run_id: str | None
    memory_bytes_max: int | None
    output_bytes_max: int


class StopAttempt(msgspec.Struct, frozen=True, tag=True):
    """Worker to process: end the attempt, because it was canceled, is late, or lost its lease."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Process to worker: the app is loaded."""


class AppUnusable(msgspec.Struct, frozen=True, tag=True):
    """Process to worker: the app cannot be loaded."""

    message: str


class NoteFrame(msgspec.Struct, frozen=True, tag=True):
    """Process to worker: a note of the attempt; `detail` is JSON."""

    kind: str
    detail: bytes


class AttemptRequest(msgspec.Struct, frozen=True, tag=True):
    """Process to worker: execute this request for the attempt, under its lease."""

    number: int
    request: Request


class ErrorFrame(msgspec.Struct, frozen=True):
    """An error as it is sent: its class, message, code and advice."""

    kind: str
    detail: str
    code: str
    advice: str


class RequestAnswer(msgspec.Struct, frozen=True, tag=True):
    """Worker to process: the result of a request, or its error."""

    number: int
    answer: Answer | None = None
    error: ErrorFrame | None = None


class AttemptEnded(msgspec.Struct, frozen=True, tag=True):
    """Process to worker: how the attempt ended.

    `is_lost`: its outcome is unknown. `is_spent`: the process should not run another attempt.
    """

    output: bytes | None
    failure: Failure | None
    is_spent: bool = False
    commits: tuple[Commit, ...] = ()
    is_lost: bool = False

    def outcome(self) -> Completed | Failed | Lost:
        if self.failure is not None:
            return Lost(self.failure) if self.is_lost else Failed(self.failure)
        assert self.output is not None
        return Completed(self.output, self.commits)


Message: TypeAlias = (
    Hello | Start | StopAttempt | Ready | AppUnusable | NoteFrame | AttemptRequest | RequestAnswer | AttemptEnded
)

_encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], Message] = msgspec.msgpack.Decoder(Message).decode


def frame(message: Message) -> bytes:
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


async def receive(reader: asyncio.StreamReader) -> Message | None:
    """Return the next message; None at the end of the stream."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return _decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError):
        return None


def receive_blocking(connection: socket.socket) -> Message | None:
    """Return the next message, blocking; for the process, which has no event loop of its own."""
    header = _exactly(connection, _LENGTH.size)
    body = _exactly(connection, _LENGTH.unpack(header)[0]) if header else b""
    return _decode(body) if body else None


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        try:
            part = connection.recv(min(count - len(parts), 1 << 20))
        except ConnectionError:
            return b""
        if not part:
            return b""
        parts += part
    return bytes(parts)
