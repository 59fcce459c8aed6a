"""The scenarios of the sweep that concern schedules. After the crash another scheduler goes on; then every slot must
have fared once: counted by the tags of tasks and runs, which know nothing of the records of slots."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import pairwise
from typing import Any

from tests.crash import acts
from tests.crash.repair import drain

from holdfast.engine.engine import Engine
from holdfast.testing.clock import DatabaseClock
from holdfast.testing.engine_harness import EngineHarness

ACTION = "shop.charge"
_FIRED = """
select tags from holdfast.body where tags @> array[$1]
union all
select tags from holdfast.run where tags @> array[$1]
"""


def name_of(given: dict[str, Any]) -> str:
    return f"s{given['round']}"


async def pass_slots(engine: Engine, clock: DatabaseClock, given: dict[str, Any], name: str, count: int) -> None:
    """Let time pass until `count` more slots have come."""
    given["slots"] = given.get("slots", 0) + count
    view = await EngineHarness(engine).schedules.view(name)
    await clock.advance(seconds=(view.upcoming[count - 1] - view.at).total_seconds() + 1)


async def keep(engine: Engine, given: dict[str, Any], **fields: Any) -> str:
    name = name_of(given)
    return await EngineHarness(engine).schedules.keep(name, input={"round": given["round"]}, **fields)


async def arrange_due(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """Three slots of a task schedule have come while nobody looked."""
    await pass_slots(engine, clock, given, await keep(engine, given, overlap="allow", missed="all"), 3)


async def arrange_due_flow(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """Two slots of a flow's schedule have come."""
    name = name_of(given)
    flow = acts.a_crash_flow(1000 + given["round"])
    await EngineHarness(engine).schedules.keep(name, flow=flow, overlap="allow", missed="all")
    await pass_slots(engine, clock, given, name, 2)


async def arrange_waiting(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """A slot waited for a firing that is over by now."""
    name = await keep(engine, given, overlap="queue")
    for _ in range(2):
        await pass_slots(engine, clock, given, name, 1)
        await EngineHarness(engine).schedule_once()
    await drain(engine, clock)


async def arrange_busy(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    """A slot comes that replaces a firing which has not started."""
    name = await keep(engine, given, overlap="replace")
    await pass_slots(engine, clock, given, name, 1)
    await EngineHarness(engine).schedule_once()
    await pass_slots(engine, clock, given, name, 1)


async def arrange_kept(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    await keep(engine, given)


async def judge_once(case: Any) -> None:
    """Whatever the victim did, each slot has one record and, if it fired, one task or run."""
    engine, name = case.engine, name_of(case.given)
    harness = EngineHarness(engine)
    for _ in range(3):
        await harness.schedule_once()
    slots = await harness.schedules.slots(name)
    tags = [row["tags"] for row in await engine.database.fetch(_FIRED, f"schedule:{name}")]
    times = Counter(tag for row in tags for tag in row if tag.startswith("scheduled_for:"))
    fired = [slot for slot in slots if slot.state == "fired"]
    assert times == {f"scheduled_for:{slot.slot.isoformat()}": 1 for slot in fired}
    assert len(fired) == len({slot.task_id or slot.run_id for slot in fired})
    assert [slot.state for slot in slots[: case.given["slots"]]] == ["fired"] * case.given["slots"]
    assert {later.slot - earlier.slot for earlier, later in pairwise(slots)} == {timedelta(hours=1)}
    await harness.schedules.delete(name)


async def decide_manual_slot(case: Any) -> None:
    """Fired by hand once or not at all; acknowledged, once."""
    harness, name = EngineHarness(case.engine), name_of(case.given)
    by_hand = [slot for slot in await harness.schedules.slots(name) if slot.cause == "by_hand"]
    tasks = [one.task_id for one in case.ended]
    assert [int(slot.task_id) for slot in by_hand] == tasks and len(tasks) <= 1
    if case.said:
        assert case.said[-1] == str(tasks[0])
    await harness.schedules.delete(name)


async def judge_declared(case: Any) -> None:
    """There or not there, and there if it was acknowledged; declaring it again changes nothing."""
    count = "select count(*) from holdfast.schedule where name = $1"
    there = await case.engine.database.fetchval(count, name_of(case.given))
    assert there == 1 or (there == 0 and not case.said)
    if there:
        await EngineHarness(case.engine).schedules.delete(name_of(case.given))
