"""Launch loop: starts workers for the tasks of launched actions, and supervises the launches.

Any number of processes may run it. There are two kinds of pass. `launch_once` takes queued tasks through slot,
reservation and launch, and finishes launches that another process began. `supervise_once` asks platforms about workers
that did not attach, stops launches of ended attempts, and frees slots and tokens. A failing platform delays only its
own tasks.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from holdfast.core.launching import launch_name
from holdfast.engine.engine import Engine
from holdfast.engine.launching import launch as launching
from holdfast.engine.launching.launch import EndedLaunch, Launch
from holdfast.engine.publish import publish_and_propagate
from holdfast.launchers.contract import LaunchError, LaunchOrder, LaunchState, LaunchStatus, NotHere
from holdfast.launchers.profiles import Profile, Profiles
from holdfast.store.database import ANY_DB_ERROR
from holdfast.wakeups.listener import Listener
from holdfast.wakeups.notifier import WAKE_CHANNEL

log = logging.getLogger("holdfast.launch")

LAUNCH_CALL_SECONDS = 45.0
"""The longest duration of one launch; less than LAUNCHING_SECONDS, so that no other process takes it over meanwhile."""
CALL_SECONDS = 30.0
LAUNCHES_AT_ONCE = 16
MISSING_SECONDS = 30.0
"""How long a platform may not yet know a launch that it started."""
ELSEWHERE_SECONDS_MAX = 24 * 3600.0
"""How long a launch waits for the machine that can stop it."""
NOTIFIED_SECONDS_MIN = 0.1


class Launching:
    """Runs passes: `run()` until cancelled, or single passes from a test."""

    def __init__(self, engine: Engine, profiles: Profiles) -> None:
        self._engine = engine
        self._database = engine.database
        self._profiles = profiles
        self._settings = engine.settings.launch
        self._busy: dict[asyncio.Task[None], str] = {}
        """Launches in progress, and their launcher."""
        self._supervising: dict[str, asyncio.Task[None]] = {}
        self._skip_until: dict[str, float] = {}
        self._notified = asyncio.Event()

    async def run(self) -> None:
        listener = Listener(self._database, WAKE_CHANNEL, lambda _turn, _lanes: self._notified.set())
        await listener.start()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._repeat("launch", self._begin_launches, self._settings.poll_seconds))
                group.create_task(self._repeat("supervise", self._begin_supervising, self._settings.poll_seconds))
        finally:
            # Launches in progress are left as they are: the next process takes them over.
            await listener.close()
            tasks = [*self._busy, *self._supervising.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def launch_once(self) -> int:
        """Run one launch pass to its end; return how many launches it tried."""
        began = await self._begin_launches()
        await asyncio.gather(*self._busy)
        return began

    async def _begin_launches(self) -> int:
        """Take launchable tasks through slot and reservation; the launches themselves run concurrently with
        the loop.
        """
        names = await self._names()
        if not names:
            return 0
        await self._declare(names)
        found = await launching.find_launchable(self._database)
        began = 0
        full: set[str] = set()
        for task in found:
            profile = self._profiles.find(task.launcher)
            if profile is None or task.launcher in full or not profile.serves(tenant=task.tenant, action=task.action):
                continue
            if not self._has_room(task.launcher):
                continue
            holder = await launching.take_slot(self._database, task, slots=profile.slots)
            if holder is None:
                full.add(task.launcher)
                continue
            launch = await launching.reserve_launch(self._database, task, holder, launch_seconds=profile.launch_seconds)
            if launch is not None:
                self._begin(profile, launch)
                began += 1
        return began + await self._adopt(names)

    async def _names(self) -> list[str]:
        """Return the launchers that actions request and that this process has."""
        wanted = await launching.launchers_wanted(self._database)
        return [name for name in wanted if self._profiles.find(name) is not None]

    async def _declare(self, names: Sequence[str]) -> None:
        """Announce the launchers of this process."""
        for name in names:
            profile = self._profiles.find(name)
            assert profile is not None
            await launching.declare_launcher(
                self._database,
                name,
                kind=profile.launcher.kind,
                slots=profile.slots,
                tenants=profile.tenants,
                actions=profile.actions,
            )

    async def _adopt(self, names: Sequence[str]) -> int:
        """Finish launches that another process began and did not finish."""
        began = 0
        while free := [name for name in names if self._has_room(name)]:
            launch = await launching.adopt_launch(self._database, free)
            if launch is None:
                break
            profile = self._profiles.find(launch.of.launcher)
            assert profile is not None
            self._begin(profile, launch)
            began += 1
        return began

    def _begin(self, profile: Profile, launch: Launch) -> None:
        began = asyncio.create_task(self._launch(profile, launch), name=f"holdfast-launch-{launch.of.task_id}")
        self._busy[began] = launch.of.launcher
        began.add_done_callback(self._busy.pop)

    def _has_room(self, launcher: str) -> bool:
        """Return whether the launcher is below its own limit, so that a slow platform does not delay the others."""
        return sum(name == launcher for name in self._busy.values()) < LAUNCHES_AT_ONCE

    async def _launch(self, profile: Profile, launch: Launch) -> None:
        """Launch, and record the result. If the database is unavailable, the next pass of any process takes it over."""
        task = launch.of
        order = await self._order(launch)
        try:
            try:
                async with asyncio.timeout(LAUNCH_CALL_SECONDS):
                    handle = await profile.launcher.launch(order)
            except Exception as error:  # noqa: BLE001 - launchers are foreign code; any exception is a failed launch
                log.warning("launching attempt %s of task %s failed: %s", task.attempt, task.task_id, _reason(error))
                settled = await launching.launch_failed(self._database, self._engine.catalog, launch, _reason(error))
                await publish_and_propagate(self._engine, settled.notifications)
            else:
                await launching.launched(self._database, launch, handle)
        except ANY_DB_ERROR as error:
            log.warning("launch of task %s could not be recorded, will be checked again: %s", task.task_id, error)

    async def _order(self, launch: Launch) -> LaunchOrder:
        task = launch.of
        return LaunchOrder(
            name=await self._name(task.task_id, task.attempt),
            token=launch.token,
            task_id=str(task.task_id),
            attempt=task.attempt,
            action=task.action,
            queue=task.queue,
            tenant=task.tenant,
        )

    async def _name(self, task_id: int, attempt: int) -> str:
        return launch_name(await self._engine.catalog.epoch_tag(task_id), task_id, attempt)

    async def supervise_once(self) -> int:
        """Run one pass over launches to its end; return how many launches it ended."""
        ended = await asyncio.gather(*(self._supervise(name) for name in await self._names()))
        await launching.tidy_launches(self._database)
        return sum(ended)

    async def _begin_supervising(self) -> int:
        """Start a concurrent pass for each launcher, so that a platform without a response delays only its own
        launches.
        """
        for name in await self._names():
            if name not in self._supervising:
                self._supervising[name] = asyncio.create_task(
                    self._supervise_in_background(name), name=f"holdfast-supervise-{name}"
                )
        await launching.tidy_launches(self._database)
        return len(self._supervising)

    async def _supervise_in_background(self, name: str) -> None:
        try:
            await self._supervise(name)
        except ANY_DB_ERROR as error:
            log.warning("supervising launcher %s failed, will try again: %s", name, error)
        finally:
            del self._supervising[name]

    async def _supervise(self, launcher: str) -> int:
        """End the launches of ended attempts of one launcher, and check those to which no worker attached."""
        over = await launching.over_launches(self._database, launcher)
        ended = await asyncio.gather(*(self._end(launch) for launch in over))
        if len(over) >= launching.OVER_BATCH:
            # There may be more than one pass returns: launches that cannot be stopped from here make room for others.
            for launch, is_ended in zip(over, ended, strict=True):
                if not is_ended:
                    await launching.put_back_launch(self._database, launch)
        await self._check_open_launches(launcher)
        return sum(ended)

    async def _end(self, launch: EndedLaunch) -> int:
        """Stop the launch of an ended attempt, unless its worker reported by itself, and delete its record."""
        profile = self._profiles.find(launch.launcher)
        assert profile is not None
        if not launch.is_reported:
            if self._is_skipped(profile):
                return 0
            name = await self._name(launch.task_id, launch.attempt)
            try:
                stopped = await self._call_platform(
                    profile, f"stop {name}", lambda: profile.launcher.stop(name, launch.handle)
                )
            except NotHere as error:
                # Its own machine stops it; if that machine never returns, its processes ended with it.
                if launch.age_seconds < ELSEWHERE_SECONDS_MAX:
                    return 0
                log.warning("launcher %s forgets %s: %s", profile.name, name, error.detail)
                stopped = None
            if stopped is _NO_ANSWER:
                return 0
        await launching.forget_launch(self._database, launch)
        return 1

    async def _check_open_launches(self, launcher: str) -> None:
        """Ask a platform about its launches; stopped ones are lost, unless their worker attached meanwhile."""
        profile = self._profiles.find(launcher)
        assert profile is not None
        if self._is_skipped(profile):
            return
        seconds = self._settings.describe_seconds
        opened = await launching.open_launches(self._database, launcher, asked_seconds=seconds)
        if not opened:
            return
        describe = partial(profile.launcher.describe, [launch.handle for launch in opened])
        seen = await self._call_platform(profile, "describe", describe)
        if seen is _NO_ANSWER:
            return
        for launch in opened:
            if is_gone(seen.get(launch.handle), launch.age_seconds):
                detail = seen[launch.handle].detail
                settled = await launching.lose_launch(self._database, self._engine.catalog, launch, detail)
                await publish_and_propagate(self._engine, settled.notifications)

    async def _call_platform(self, profile: Profile, what: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return a platform's response, or `_NO_ANSWER`."""
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await call()
        except NotHere:
            raise
        except Exception as error:  # noqa: BLE001 - launchers are foreign code; it is asked again
            log.warning("launcher %s, %s: %s", profile.name, what, _reason(error))
            self._skip_until[profile.name] = time.monotonic() + self._settings.describe_seconds
            return _NO_ANSWER

    def _is_skipped(self, profile: Profile) -> bool:
        """Return whether a platform that just failed to respond is skipped for a while."""
        return time.monotonic() < self._skip_until.get(profile.name, 0.0)

    async def _repeat(self, name: str, step: Callable[[], Awaitable[int]], seconds: float) -> None:
        outage = self._engine.database.outage
        while True:
            try:
                await step()
                outage.answered(name)
            except ANY_DB_ERROR as error:
                outage.failed(name, error)
            except Exception:
                # It runs next to the maintenance loops in the same process and must not end them.
                log.exception("%s pass failed, will try again", name)
            if name == "launch":
                await self._wait(seconds * random.uniform(0.8, 1.0))
            else:
                await asyncio.sleep(seconds * random.uniform(0.8, 1.0))

    async def _wait(self, seconds: float) -> None:
        """Wait for a notification or the next poll; frequent notifications are handled at most ten times a second."""
        await asyncio.sleep(min(NOTIFIED_SECONDS_MIN, seconds))
        try:
            await asyncio.wait_for(self._notified.wait(), max(0.0, seconds - NOTIFIED_SECONDS_MIN))
        except TimeoutError:
            return
        self._notified.clear()


_NO_ANSWER = object()


def is_gone(seen: LaunchStatus | None, age_seconds: float) -> bool:
    """Return whether the observed state means that nothing runs; the platform may not know a recent launch yet."""
    if seen is None:
        return False
    return seen.state is LaunchState.STOPPED or (seen.state is LaunchState.MISSING and age_seconds >= MISSING_SECONDS)


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "the platform did not respond in time"
    return error.detail if isinstance(error, LaunchError) else f"{type(error).__name__}: {error}"
