"""Random appends, replaces, replays, losses and crashes against a dict: no row twice, no row missing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.datasets.hands import completed, declared, orders, rows, staged, stages

from holdfast.core.tasks.outcome import Failed
from holdfast.engine.datasets.stage import sweep_stages_once
from holdfast.engine.engine import Engine
from holdfast.engine.leases import report_of
from holdfast.engine.lifecycle.tasks.settle import settle
from holdfast.errors import LeaseLost, Unavailable
from holdfast.testing.clock import DatabaseClock
from holdfast.testing.engine_harness import EngineHarness, HeldLease
from holdfast.testing.factories import a_failure, a_running_task

STORIES = count()
KEYS_MAX = 10
"""Each story has keys of its own, so that one database does for all of them."""

STEPS = st.tuples(
    st.sampled_from(["append", "replace"]),
    st.sampled_from(["", "monday", "tuesday"]),
    st.lists(st.integers(0, 6), max_size=4),
    st.sampled_from(
        ["complete", "complete", "repeat", "fail", "roll back", "lose", "late", "sweep first", "two at once"]
    ),
)


@dataclass
class Model:
    """What a keyed dataset must hold: partition and value by key; `value` tells which step put it there."""

    by_key: dict[int, tuple[str, int]] = field(default_factory=dict)

    def append(self, partition: str, keys: list[int], value: int) -> None:
        for key in keys:
            self.by_key.setdefault(key, (partition, value))

    def replace(self, partition: str, keys: list[int], value: int) -> bool:
        kept = {key: held for key, held in self.by_key.items() if held[0] != partition}
        if len(set(keys)) < len(keys) or kept.keys() & set(keys):
            return False
        self.by_key = kept | dict.fromkeys(keys, (partition, value))
        return True


class Play:
    def __init__(self, engine: Engine, clock: DatabaseClock, *, first_key: int) -> None:
        self.engine, self.clock, self.first_key = engine, clock, first_key
        self.harness = EngineHarness(engine)
        self.model = Model()
        self.value = 0

    async def step(self, mode: str, partition: str, keys: list[int], fate: str) -> None:
        keys = [self.first_key + key for key in keys]
        self.value += 1
        lease = await a_running_task(self.harness, max_losses=5, max_retries=5, base_backoff_secs=0)
        commit = await self._stage(lease, mode, partition, keys)
        outcome = completed(commit)
        match fate:
            case "fail":
                await self.harness.settle(lease, Failed(a_failure()))
                lease = await self.harness.claim_task(lease.task_id)
                outcome = completed(await self._stage(lease, mode, partition, keys))
            case "roll back":
                await self._crash_inside(lease, outcome)
            case "lose" | "late":
                await self.clock.advance(seconds=lease.seconds + 1)
                await self.harness.reap_once()
                fresh = await self.harness.claim_task(lease.task_id)
                again = await self._stage(fresh, mode, partition, keys)
                if fate == "late":
                    with pytest.raises(LeaseLost):
                        await self.harness.settle(lease, outcome)
                lease, outcome = fresh, completed(again)
            case "sweep first":
                await sweep_stages_once(self.engine.database)
        if fate == "two at once":
            await asyncio.gather(self.harness.settle(lease, outcome), self.harness.settle(lease, outcome))
        else:
            await self.harness.settle(lease, outcome)
        if fate == "repeat":
            await self.harness.settle(lease, outcome)
        await self._expect(lease, mode, partition, keys)

    async def _stage(self, lease: HeldLease, mode: str, partition: str, keys: list[int]):
        given_rows = rows(*keys, cents=self.value)
        generation = await declared(self.engine)
        return await staged(self.engine, lease, generation, given_rows, mode=mode, partition=partition)

    async def _crash_inside(self, lease: HeldLease, outcome) -> None:
        """The settling process dies before its commit."""
        with pytest.raises(Unavailable):
            async with self.engine.database.session() as session, session.transaction():
                await settle(session, self.engine.catalog, [report_of(lease.claimed, outcome)])
                raise ConnectionResetError

    async def _expect(self, lease: HeldLease, mode: str, partition: str, keys: list[int]) -> None:
        if mode == "append":
            self.model.append(partition, keys, self.value)
            is_done = True
        else:
            is_done = self.model.replace(partition, keys, self.value)
        state = str((await self.harness.task(lease.task_id)).state)
        assert state == ("completed" if is_done else "failed")
        found = await self.engine.database.fetch(
            "select order_id, _partition, cents from holdfast_data.orders_v1 where order_id >= $1", self.first_key
        )
        assert {row[0]: (row[1], row[2]) for row in found} == self.model.by_key
        assert len(found) == len(self.model.by_key)


@pytest.mark.slow(
    "it runs many tasks with a real worker; test_without_a_key_each_completed_task_is_there_exactly_once is fast"
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, min_size=1, max_size=10))
def test_a_keyed_dataset_holds_what_the_model_says(on_engine, steps):
    async def play(engine: Engine) -> None:
        clock = DatabaseClock(engine.database)
        playing = Play(engine, clock, first_key=KEYS_MAX * next(STORIES))
        for step in steps:
            await playing.step(*step)
        while await sweep_stages_once(engine.database):
            pass
        assert await stages(engine) == (0, 0)
        await clock.reset()

    on_engine(play)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=3), st.booleans()), min_size=1, max_size=8))
def test_without_a_key_each_completed_task_is_there_exactly_once(on_engine, batches):
    expected: list[tuple[int, int]] = []
    first = KEYS_MAX * next(STORIES)

    async def play(engine: Engine) -> None:
        harness = EngineHarness(engine)
        generation = await declared(engine, orders(key=()))
        leases = [await a_running_task(harness) for _ in batches]
        settling = []
        for number, (lease, (keys, is_completed)) in enumerate(zip(leases, batches, strict=True), start=first):
            commit = await staged(engine, lease, generation, rows(*keys, cents=number))
            outcome = completed(commit) if is_completed else Failed(a_failure("validation: no"))
            settling.append(harness.settle(lease, outcome))
            if is_completed:
                expected.extend((key, number) for key in keys)
        await asyncio.gather(*settling)
        found = await engine.database.fetch("select order_id, cents from holdfast_data.orders where cents >= $1", first)
        assert sorted(map(tuple, found)) == sorted(expected)

    on_engine(play)
