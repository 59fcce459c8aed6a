"""The launching loop: starts workers for the tasks of actions that ask for it, and looks after what it started.

Any number of processes may run it. Two kinds of pass: `launch_once` takes queued tasks through slot, reservation and
launch, and finishes what another process began; `tend_once` asks platforms about workers that did not attach, stops
what belongs to attempts that are over, and lets go of slots and tokens. A platform in trouble delays its own tasks.
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
"""One launch may take so long; less than LAUNCHING_SECONDS, so that nobody takes it over meanwhile."""
CALL_SECONDS = 30.0
LAUNCHES_AT_ONCE = 16
MISSING_SECONDS = 30.0
"""So long a platform may not know yet what it started."""
ELSEWHERE_SECONDS_MAX = 24 * 3600.0
"""So long a launch waits for the machine that can stop it."""
RING_SECONDS = 0.1


class Launching:
    """`run()` until cancelled, or single passes from a test."""

    def __init__(self, engine: Engine, profiles: Profiles) -> None:
        self._engine = engine
        self._database = engine.database
        self._profiles = profiles
        self._settings = engine.settings.launch
        self._busy: dict[asyncio.Task[None], str] = {}
        """Launches under way, and by which launcher."""
        self._tending: dict[str, asyncio.Task[None]] = {}
        self._rest_until: dict[str, float] = {}
        self._rung = asyncio.Event()

    async def run(self) -> None:
        listener = Listener(self._database, WAKE_CHANNEL, lambda _turn, _lanes: self._rung.set())
        await listener.start()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._repeat("launch", self._begin_launches, self._settings.poll_seconds))
                group.create_task(self._repeat("tend", self._begin_tending, self._settings.poll_seconds))
        finally:
            # What is being launched is left as it is: whoever runs next takes it over.
            await listener.close()
            beside = [*self._busy, *self._tending.values()]
            for one in beside:
                one.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    async def launch_once(self) -> int:
        """One pass, to its end; answers how many launches it tried."""
        began = await self._begin_launches()
        await asyncio.gather(*self._busy)
        return began

    async def _begin_launches(self) -> int:
        """Take what can be launched through slot and reservation; the launches themselves go on beside the loop."""
        names = await self._names()
        if not names:
            return 0
        await self._declare(names)
        found = await launching.find_launchable(self._database)
        began = 0
        full: set[str] = set()
        for one in found:
            profile = self._profiles.find(one.launcher)
            if profile is None or one.launcher in full or not profile.serves(tenant=one.tenant, action=one.action):
                continue
            if not self._has_room(one.launcher):
                continue
            holder = await launching.take_slot(self._database, one, slots=profile.slots)
            if holder is None:
                full.add(one.launcher)
                continue
            launch = await launching.reserve_launch(self._database, one, holder, launch_seconds=profile.launch_seconds)
            if launch is not None:
                self._begin(profile, launch)
                began += 1
        return began + await self._adopt(names)

    async def _names(self) -> list[str]:
        """The launchers that are wanted and can be used here."""
        wanted = await launching.launchers_wanted(self._database)
        return [name for name in wanted if self._profiles.find(name) is not None]

    async def _declare(self, names: Sequence[str]) -> None:
        """Say which launchers this process has."""
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
        """Finish launches that some process began and did not finish."""
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
        """So many at once of each: a platform that is slow to answer keeps no other waiting."""
        return sum(name == launcher for name in self._busy.values()) < LAUNCHES_AT_ONCE

    async def _launch(self, profile: Profile, launch: Launch) -> None:
        """Launch, and write down how it went. A database that is away leaves it to whoever looks next."""
        one = launch.of
        order = await self._order(launch)
        try:
            try:
                async with asyncio.timeout(LAUNCH_CALL_SECONDS):
                    handle = await profile.launcher.launch(order)
            except Exception as error:  # noqa: BLE001 - a launcher is anybody's code; whatever it raises, it did not launch
                log.warning("launching attempt %s of task %s failed: %s", one.attempt, one.task_id, _words(error))
                settled = await launching.launch_failed(self._database, self._engine.catalog, launch, _words(error))
                await publish_and_propagate(self._engine, settled.notifications)
            else:
                await launching.launched(self._database, launch, handle)
        except ANY_DB_ERROR as error:
            log.warning("launch of task %s is not on record, will be looked at again: %s", one.task_id, error)

    async def _order(self, launch: Launch) -> LaunchOrder:
        one = launch.of
        return LaunchOrder(
            name=await self._name(one.task_id, one.attempt),
            token=launch.token,
            task_id=str(one.task_id),
            attempt=one.attempt,
            action=one.action,
            queue=one.queue,
            tenant=one.tenant,
        )

    async def _name(self, task_id: int, attempt: int) -> str:
        return launch_name(await self._engine.catalog.epoch_tag(task_id), task_id, attempt)

    async def tend_once(self) -> int:
        """One pass over what was launched, to its end; answers how many launches it ended."""
        ended = await asyncio.gather(*(self._tend(name) for name in await self._names()))
        await launching.tidy_launches(self._database)
        return sum(ended)

    async def _begin_tending(self) -> int:
        """Tend each launcher beside the others: a platform that does not answer holds up what is its own."""
        for name in await self._names():
            if name not in self._tending:
                self._tending[name] = asyncio.create_task(self._tend_apart(name), name=f"holdfast-tend-{name}")
        await launching.tidy_launches(self._database)
        return len(self._tending)

    async def _tend_apart(self, name: str) -> None:
        try:
            await self._tend(name)
        except ANY_DB_ERROR as error:
            log.warning("tending launcher %s failed, will try again: %s", name, error)
        finally:
            del self._tending[name]

    async def _tend(self, launcher: str) -> int:
        """End what is over of one launcher, and look after what nobody attached to."""
        over = await launching.over_launches(self._database, launcher)
        ended = await asyncio.gather(*(self._end(one) for one in over))
        if len(over) >= launching.OVER_BATCH:
            # There may be more than one pass holds: what cannot be stopped from here makes room for it.
            for one in (one for one, is_ended in zip(over, ended, strict=True) if not is_ended):
                await launching.put_back_launch(self._database, one)
        await self._look(launcher)
        return sum(ended)

    async def _end(self, one: EndedLaunch) -> int:
        """Stop what belongs to an attempt that is over, unless its worker said so itself, and forget it."""
        profile = self._profiles.find(one.launcher)
        assert profile is not None
        if not one.is_reported:
            if self._rests(profile):
                return 0
            name = await self._name(one.task_id, one.attempt)
            try:
                stopped = await self._asked(profile, f"stop {name}", lambda: profile.launcher.stop(name, one.handle))
            except NotHere as error:
                # Its own machine stops it; one that never comes back took what it ran with it.
                if one.age_seconds < ELSEWHERE_SECONDS_MAX:
                    return 0
                log.warning("launcher %s forgets %s: %s", profile.name, name, error.detail)
                stopped = None
            if stopped is _NO_ANSWER:
                return 0
        await launching.forget_launch(self._database, one)
        return 1

    async def _look(self, launcher: str) -> None:
        """Ask a platform about its launches; those it calls stopped are lost, unless they attached meanwhile."""
        profile = self._profiles.find(launcher)
        assert profile is not None
        if self._rests(profile):
            return
        asked_seconds = self._settings.describe_seconds
        opened = await launching.open_launches(self._database, launcher, asked_seconds=asked_seconds)
        if not opened:
            return
        describe = partial(profile.launcher.describe, [one.handle for one in opened])
        seen = await self._asked(profile, "describe", describe)
        if seen is _NO_ANSWER:
            return
        for one in opened:
            if is_gone(seen.get(one.handle), one.age_seconds):
                detail = seen[one.handle].detail
                settled = await launching.lose_launch(self._database, self._engine.catalog, one, detail)
                await publish_and_propagate(self._engine, settled.notifications)

    async def _asked(self, profile: Profile, what: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        """What a platform answers, or that it does not."""
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await ask()
        except NotHere:
            raise
        except Exception as error:  # noqa: BLE001 - a launcher is anybody's code; it is asked again
            log.warning("launcher %s, %s: %s", profile.name, what, _words(error))
            self._rest_until[profile.name] = time.monotonic() + self._settings.describe_seconds
            return _NO_ANSWER

    def _rests(self, profile: Profile) -> bool:
        """Whether a platform that just did not answer is left alone for a while."""
        return time.monotonic() < self._rest_until.get(profile.name, 0.0)

    async def _repeat(self, name: str, step: Callable[[], Awaitable[int]], seconds: float) -> None:
        outage = self._engine.database.outage
        while True:
            try:
                await step()
                outage.answered(name)
            except ANY_DB_ERROR as error:
                outage.failed(name, error)
            except Exception:
                # It runs beside the repair loops, and must not take them along.
                log.exception("%s pass failed, will try again", name)
            if name == "launch":
                await self._wait(seconds * random.uniform(0.8, 1.0))
            else:
                await asyncio.sleep(seconds * random.uniform(0.8, 1.0))

    async def _wait(self, seconds: float) -> None:
        """Until the bell rings, or the next poll; a busy bell is heard ten times a second."""
        await asyncio.sleep(min(RING_SECONDS, seconds))
        try:
            await asyncio.wait_for(self._rung.wait(), max(0.0, seconds - RING_SECONDS))
        except TimeoutError:
            return
        self._rung.clear()


_NO_ANSWER = object()


def is_gone(seen: LaunchStatus | None, age_seconds: float) -> bool:
    """Whether a platform's word means that nothing runs: a young launch may not be known there yet."""
    if seen is None:
        return False
    return seen.sighting is LaunchState.STOPPED or (
        seen.sighting is LaunchState.MISSING and age_seconds >= MISSING_SECONDS
    )


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "the platform did not answer in time"
    return error.detail if isinstance(error, LaunchError) else f"{type(error).__name__}: {error}"
