"""Work for the fault tests: hand it in through whatever faults there are, keep account, and judge at the end.

Every operation ends as `ok` (promised), `refused` (not done, and said so) or `unknown` (an error that may hide a
success). A promise must hold; an unknown may have happened once or not at all; what carries a key is repeated until it
was promised and must have happened once.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.victim_app import blocking, flaky, quick, waiting

from holdfast.client.client import Client
from holdfast.engine.engine import Engine
from holdfast.engine.queries.verify import verify
from holdfast.errors import Conflict, NotFound
from holdfast.store.database import TRANSIENT

REPEAT_SECONDS_MAX = 60.0
REPEAT_PAUSE_SECONDS = 0.02
_ENDINGS = """
select t.task_id, t.state, t.attempt, t.next_retry_at, t.worker_id,
  (convert_from(t.input, 'utf8')::jsonb ->> 'number')::int as number
from holdfast.tasks t
"""


@dataclass(slots=True)
class Load:
    """What was asked for and what was promised."""

    client: Client
    chance: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    promised: dict[int, str] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)
    batches: list[set[int]] = field(default_factory=list)
    cancels: set[str] = field(default_factory=set)
    canceled: set[str] = field(default_factory=set)
    last: int = 0

    def _number(self) -> int:
        self.last += 1
        return self.last

    async def step(self) -> None:
        """One operation of a random kind."""
        kind = self.chance.choices(["one", "keyed", "many", "cancel"], [5, 3, 2, 1])[0]
        await {"one": self.one, "keyed": self.keyed, "many": self.many, "cancel": self.cancel}[kind]()

    async def one(self) -> None:
        number = self._number()
        seconds = self.chance.uniform(0.0, 0.05)
        action, rest = self.chance.choice(
            [(quick, {}), (flaky, {}), (waiting, {"seconds": seconds}), (blocking, {"seconds": seconds})]
        )
        try:
            task = await self.client.enqueue(action, number=number, **rest)
        except TRANSIENT:
            self.unknown.add(number)
            self.counts["enqueue unknown"] += 1
            return
        self.promised[number] = task.task_id
        self.counts["enqueue ok"] += 1

    async def keyed(self) -> None:
        """Repeat under the same key until there is an answer."""
        number = self._number()
        deadline = asyncio.get_running_loop().time() + REPEAT_SECONDS_MAX
        while asyncio.get_running_loop().time() < deadline:
            try:
                task = await self.client.enqueue(quick.options(key=f"order-{number}"), number=number)
            except TRANSIENT:
                self.counts["keyed repeated"] += 1
                await asyncio.sleep(REPEAT_PAUSE_SECONDS)
                continue
            self.promised[number] = task.task_id
            self.counts["keyed ok"] += 1
            return
        raise AssertionError("the database did not come back")

    async def many(self) -> None:
        numbers = {self._number() for _ in range(5)}
        self.batches.append(numbers)
        try:
            tasks = await self.client.enqueue_many(quick, [{"number": number} for number in sorted(numbers)])
        except TRANSIENT:
            self.unknown |= numbers
            self.counts["bulk unknown"] += 1
            return
        self.promised |= dict(zip(sorted(numbers), (task.task_id for task in tasks), strict=True))
        self.counts["bulk ok"] += 1

    async def cancel(self) -> None:
        if not self.promised:
            return
        task_id = self.chance.choice(list(self.promised.values())[-50:])
        self.cancels.add(task_id)
        try:
            if await self.client.cancel(task_id) == "canceled":
                self.canceled.add(task_id)
            self.counts["cancel ok"] += 1
        except (Conflict, NotFound):
            self.counts["cancel refused"] += 1
        except TRANSIENT:
            self.counts["cancel unknown"] += 1

    async def judge(self, engine: Engine, log: Path) -> None:
        """Everything is over: compare what was promised with what there is."""
        rows = await engine.database.fetch(_ENDINGS)
        by_number = Counter(row["number"] for row in rows)
        assert not [number for number, count in by_number.items() if count > 1], "something is there twice"
        ids = {row["number"]: row["task_id"] for row in rows}
        lost = {number: task_id for number, task_id in self.promised.items() if ids.get(number) != task_id}
        assert not lost, f"promised and not there: {lost}"
        assert set(ids) <= set(self.promised) | self.unknown, "something is there that nobody asked for"
        for batch in self.batches:
            assert len(batch & set(ids)) in (0, len(batch)), "half a batch is there"
        self._judge_states(rows)
        await self._judge_executions(engine, log, ids)
        found = await verify(engine.database)
        assert found.is_sound, "\n".join(map(str, found.violations))

    def _judge_states(self, rows: list) -> None:
        for row in rows:
            self.counts[f"task {row['state']}"] += 1
            if row["task_id"] in self.canceled:
                assert row["state"] == "canceled", f"{dict(row)} was canceled and went on"
            elif row["state"] != "completed":
                assert row["task_id"] in self.cancels, f"{dict(row)} should have completed"

    async def _judge_executions(self, engine: Engine, log: Path, ids: dict[int, str]) -> None:
        """Each completion was accepted once, and comes from the very process that ran that attempt."""
        lines = _executions(log)
        ran = {(task_id, int(attempt), int(pid)) for task_id, attempt, pid in lines}
        accepted = await engine.database.fetch(
            "select task_id, attempt, output from holdfast.attempt where state = 'c'"
        )
        assert len({row["task_id"] for row in accepted}) == len(accepted), "a task completed twice"
        for row in accepted:
            number, pid = json.loads(row["output"])
            assert ids[number] == str(row["task_id"])
            assert (str(row["task_id"]), row["attempt"], pid) in ran, f"{dict(row)} was accepted and never ran"
        repeated = [line for line, count in lines.items() if count > 1]
        assert not repeated, f"one process ran one attempt twice: {repeated}"
        self.counts["executions"] = sum(lines.values())
        self.counts["executions beyond the first"] = sum(lines.values()) - len({task_id for task_id, _, _ in ran})


def _executions(log: Path) -> Counter[tuple[str, ...]]:
    return Counter(tuple(line.split()) for line in log.read_text().splitlines()) if log.exists() else Counter()


async def all_over(engine: Engine, *, seconds_max: float = 60.0) -> None:
    """Wait until nothing is live."""
    deadline = asyncio.get_running_loop().time() + seconds_max
    while True:
        try:
            live = await engine.database.fetch("select task_id, state, attempt, losses from holdfast.live limit 5")
            if not live:
                return
        except TRANSIENT:
            live = ["the database is away"]
        assert asyncio.get_running_loop().time() < deadline, f"not over after {seconds_max:g} s: {live}"
        await asyncio.sleep(0.02)
