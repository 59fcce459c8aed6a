"""The app that the worker tests run in real processes. Every attempt writes into a journal what it does and when.

An attempt that begins while an earlier one of the same task could still run writes `overlap`: the line that must never
appear.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import threading
import time
from pathlib import Path

import holdfast as hf

app = hf.App("fleet")
JOURNAL = Path(os.environ.get("FLEET_JOURNAL", "/dev/null"))


def write(word: str, ctx: hf.Context) -> None:
    line = f"{word} {ctx.task_id} {ctx.attempt} {os.getpid()} {time.monotonic():.6f}\n"
    descriptor = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def begin(ctx: hf.Context) -> None:
    lines = [line.split() for line in JOURNAL.read_text().splitlines()] if JOURNAL.is_file() else []
    mine = [line for line in lines if line[1] == ctx.task_id]
    ended = {line[2] for line in mine if line[0] == "stop"}
    if any(line[0] == "start" and line[2] not in ended and is_alive(int(line[3])) for line in mine):
        write("overlap", ctx)
    write("start", ctx)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@app.action
async def add(a: int, b: int) -> int:
    return a + b


@app.action
async def wait_for(ctx: hf.Context, path: str) -> str:
    begin(ctx)
    while not os.path.exists(path):  # noqa: ASYNC240, ASYNC110, PTH110 - a file is how the test speaks to this process
        await asyncio.sleep(0.005)
    write("stop", ctx)
    return "done"


@app.action
def wait_in_thread(ctx: hf.Context, path: str) -> str:
    begin(ctx)
    while not Path(path).exists():
        time.sleep(0.005)
    write("stop", ctx)
    return "done"


@app.action
async def hang_once(ctx: hf.Context) -> int:
    """The first attempt never ends by itself."""
    begin(ctx)
    if ctx.attempt == 1:
        try:
            await asyncio.Event().wait()
        finally:
            write("stop", ctx)
    write("stop", ctx)
    return ctx.attempt


@app.action
def start_a_process_once(ctx: hf.Context, pid_file: str) -> int:
    """The first attempt starts a process and hangs; the second looks whether that process still runs."""
    begin(ctx)
    note = Path(pid_file)
    if ctx.attempt == 1:
        note.write_text(str(subprocess.Popen(["sleep", "600"]).pid))
        write("started", ctx)
        threading.Event().wait()
    if is_alive(int(note.read_text())):
        write("overlap", ctx)
    return ctx.attempt


@app.action
async def hold_interpreter_once(ctx: hf.Context) -> int:
    """The first attempt sits in C code and keeps the interpreter's lock, far beyond any lease of the tests."""
    begin(ctx)
    if ctx.attempt == 1:
        ctypes.PyDLL(None).sleep(60)
    write("stop", ctx)
    return ctx.attempt


@app.action
async def block_loop(ctx: hf.Context, seconds: float) -> int:
    begin(ctx)
    time.sleep(seconds)  # noqa: ASYNC251 - this is the offence
    write("stop", ctx)
    return ctx.attempt


@app.action(timeout=0.2, retry={"base_backoff_secs": 0})
async def refuse_to_stop_once(ctx: hf.Context) -> int:
    begin(ctx)
    while ctx.attempt == 1:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue
    write("stop", ctx)
    return ctx.attempt


@app.action(timeout=0.2, retry={"base_backoff_secs": 0})
def overrun_in_thread_once(ctx: hf.Context) -> int:
    begin(ctx)
    while ctx.attempt == 1:
        time.sleep(0.01)
    write("stop", ctx)
    return ctx.attempt


@app.action(isolation="process", max_losses=1, retry={"base_backoff_secs": 0})
def crash(ctx: hf.Context) -> None:
    begin(ctx)
    ctypes.string_at(0)


@app.action(isolation="process")
def process_id() -> int:
    return os.getpid()


@app.action(isolation="process", memory_bytes_max=64 * 1024 * 1024)
def eat(megabytes: int) -> int:
    return len(bytearray(megabytes * 1024 * 1024))


@app.action(isolation="process")
async def speak(ctx: hf.Context, words: list[str]) -> int:
    for number, word in enumerate(words, start=1):
        ctx.log(word, number=number)
        ctx.progress(number, len(words))
    return len(words)


@app.action(isolation="process", timeout=0.3, max_retries=0)
def never_listen(ctx: hf.Context, folder: str) -> None:
    """Starts a process of its own and ignores every request to stop."""
    begin(ctx)
    started = subprocess.Popen(["sleep", "600"])
    (Path(folder) / "grandchild").write_text(str(started.pid))
    while True:
        try:
            time.sleep(60)
        except SystemExit:
            write("terminated", ctx)


@app.action(isolation="process")
def until_told(ctx: hf.Context) -> str:
    begin(ctx)
    while not ctx.is_canceled:
        time.sleep(0.005)
    write("stop", ctx)
    return "told"
