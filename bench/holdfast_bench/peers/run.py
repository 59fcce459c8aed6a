"""The drain with other engines: same tasks, same marks, same server. A failure is reported and never fatal.

The time is measured from the first execution until the engine's own store shows nothing left.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import Unavailable
from holdfast_bench.app import CAPACITY_VARIABLE, MARKS_VARIABLE
from holdfast_bench.crew import Member, launch
from holdfast_bench.peers import private_redis
from holdfast_bench.peers.field import FAN_NODES, Peer
from holdfast_bench.peers.home import install
from holdfast_bench.spread import spread
from holdfast_bench.trial import Trial

DRIVERS = Path(__file__).parent / "drivers"
STEP_SECONDS_MAX = 180.0
DRAIN_SECONDS_MAX = 180.0
LOOK_SECONDS = 0.01


class PeerRun(msgspec.Struct, frozen=True, kw_only=True):
    per_s: float
    doubles: int
    losses: int


class PeerRuns:
    """All rounds of all peers. A peer that failed once is not tried again."""

    def __init__(self, trial: Trial, peers: Sequence[Peer]) -> None:
        self._trial = trial
        self._peers = peers
        self._bins: dict[str, Path] = {}
        self._runs: dict[str, list[PeerRun]] = {}
        self._notes: dict[str, str] = {}

    async def install(self) -> None:
        """Create the environments before anything is measured."""
        for peer in self._peers:
            if peer.needs_redis and not private_redis.is_installed():
                self._notes[peer.name] = "skipped: it needs `redis-server` (Debian: apt install redis-server)."
                continue
            self._trial.say(f"peers: installing {peer.name}")
            try:
                self._bins[peer.name] = await install(peer)
            except (Unavailable, OSError) as error:
                self._notes[peer.name] = f"skipped: {_said(error)}"

    async def round(self) -> None:
        """Run one drain of each peer."""
        for peer in self._peers:
            if peer.name in self._notes:
                continue
            self._trial.say(f"peers: {peer.name}")
            try:
                run = await drain_peer(self._trial, peer, self._bins[peer.name])
            except (Unavailable, OSError, ValueError) as error:
                self._notes[peer.name] = f"failed: {_said(error)}"
            else:
                self._runs.setdefault(peer.name, []).append(run)

    def results(self) -> dict[str, Any]:
        """Return by name the rate with its spread, or the reason why there is none."""
        found: dict[str, Any] = {}
        for peer in self._peers:
            found[peer.name] = self._result(peer, self._runs.get(peer.name, []))
            if peer.name in self._notes:
                found[peer.name]["note"] = self._notes[peer.name]
        return found

    def _result(self, peer: Peer, runs: list[PeerRun]) -> dict[str, Any]:
        if not runs:
            return {"drain_per_s": None}
        rate = spread(run.per_s for run in runs)
        return {
            "drain_per_s": round(rate.median, 1),
            "spread": rate,
            "tasks": _tasks(self._trial, peer),
            "doubles": sum(run.doubles for run in runs),
            "losses": sum(run.losses for run in runs),
            "version": peer.requires[0],
        }


async def drain_peer(trial: Trial, peer: Peer, bin_directory: Path) -> PeerRun:
    """Fill an empty store of the peer, start its workers, and wait until its store is empty."""
    tasks = _tasks(trial, peer)
    trial.marks.clear()
    async with AsyncExitStack() as stack:
        # A server that a peer started may still write while it is ending.
        made = tempfile.TemporaryDirectory(prefix="holdfast-bench-peer-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(made))
        places = {"BENCH_FOLDER": str(folder)}
        if peer.needs_redis:
            places["BENCH_REDIS"] = await stack.enter_async_context(private_redis.start())
        else:
            places["BENCH_PG"] = await stack.enter_async_context(trial.arena.another_database())
        store = _Store(trial, peer, bin_directory, places, folder / "log")
        await store.step("setup")
        await store.step("fill", str(tasks))
        if not peer.needs_redis:
            await trial.arena.analyze(places["BENCH_PG"])
        counter = await stack.enter_async_context(store.counter())
        workers = [await stack.enter_async_context(store.worker(number)) for number in range(peer.processes)]
        ended_at = await _until_done(trial, tasks, counter, workers, folder / "log")
    began_at = trial.marks.first_started_at(tasks)
    return PeerRun(
        per_s=tasks / (ended_at - began_at), doubles=trial.marks.doubles(tasks), losses=trial.marks.missing(tasks)
    )


class _Store:
    """One peer with its store: how its driver and its workers are started."""

    def __init__(self, trial: Trial, peer: Peer, bin_directory: Path, places: Mapping[str, str], log: Path) -> None:
        self._peer = peer
        self._bin = bin_directory
        self._log = log
        self._driver = DRIVERS / f"{peer.module}.py"
        self._redis = places.get("BENCH_REDIS", "")
        self._environment = {
            MARKS_VARIABLE: str(trial.marks.path),
            CAPACITY_VARIABLE: str(trial.marks.capacity),
            "PYTHONPATH": str(DRIVERS),
            "PYTHONWARNINGS": "ignore",
            **places,
            **peer.environment,
        }

    async def step(self, *words: str) -> None:
        """Run the driver to its end."""
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                str(self._bin / "python"),
                str(self._driver),
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
            )
        try:
            code = await asyncio.wait_for(process.wait(), STEP_SECONDS_MAX)
        except TimeoutError:
            process.kill()
            raise Unavailable(f"`{words[0]}` took longer than {STEP_SECONDS_MAX:g} s.", code="peer_failed") from None
        if code:
            raise Unavailable(f"`{words[0]}` ended with: {last_line(self._log)}", code="peer_failed")

    @asynccontextmanager
    async def counter(self) -> AsyncIterator[Member]:
        """Start the driver that reports how many tasks are left."""
        with self._log.open("ab") as log:
            command = [str(self._bin / "python"), str(self._driver), "left"]
            member = await launch(command, environment=self._environment, log=log.fileno())
        try:
            yield member
        finally:
            await member.stop()

    @asynccontextmanager
    async def worker(self, number: int) -> AsyncIterator[Member]:
        places = {"bin": self._bin, "driver": self._driver, "redis": self._redis, "i": number}
        command = [word.format(**places) for word in self._peer.command]
        guard = [sys.executable, str(private_redis.GUARD), str(self._log), *command]
        member = await launch(guard, environment=self._environment, cwd=DRIVERS)
        try:
            yield member
        finally:
            await member.stop()


async def _until_done(trial: Trial, tasks: int, counter: Member, workers: list[Member], log: Path) -> float:
    """Wait until all tasks ran and the peer's store is empty; return when."""
    give_up_at = time.monotonic() + DRAIN_SECONDS_MAX
    while trial.marks.missing(tasks) or await _left(counter):
        if time.monotonic() > give_up_at:
            raise Unavailable(f"{trial.marks.missing(tasks)} of {tasks} tasks did not run.", code="peer_failed")
        if not any(worker.is_alive for worker in workers):
            raise Unavailable(f"its workers ended: {last_line(log)}", code="peer_failed")
        await asyncio.sleep(LOOK_SECONDS)
    return time.monotonic()


async def _left(counter: Member) -> int:
    counter.say("")
    return int(await counter.line(STEP_SECONDS_MAX))


def _tasks(trial: Trial, peer: Peer) -> int:
    """Return how many tasks a peer gets: the trial's number up to its limit; whole runs if it runs graphs."""
    tasks = min(trial.tasks, peer.tasks_max)
    return max(tasks - tasks % FAN_NODES, FAN_NODES) if peer.is_flow else tasks


def last_line(log: Path) -> str:
    lines = [line for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "no words"


def _said(error: BaseException) -> str:
    return error.detail if isinstance(error, Unavailable) else str(error)
