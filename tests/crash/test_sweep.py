"""The k-sweep: every verb dies before, dies after, or loses its connection at every one of its statements (`strikes`).

After each strike other processes repair and finish the work; then every promise made before the strike must hold. A
sweep ends when k is beyond the last statement, so nothing is left out when a verb grows.
"""

from __future__ import annotations

import inspect
import re
from itertools import count
from pathlib import Path

import pytest
from tests.crash import acts
from tests.crash.case import Case
from tests.crash.repair import drain, endings, last_task_id
from tests.crash.scenarios import ACT_OF, ALIKE, SCENARIOS
from tests.crash.strikes import fast_scenarios, strike_at, struck

from holdfast.engine.maintenance.loops import Loops
from holdfast.store.database import TRANSIENT
from holdfast.testing.crash import FaultMode, Stage, StatementFault

pytestmark = pytest.mark.crash

REPEATS_MAX = 3
WITHIN = {"deliver_once": "send_signal", "hold_children_once": "pause_run", "free_children_once": "resume_child"}
"""Passes that are struck where a verb makes them, by the scenario."""


def test_scenarios_that_are_alike_are_scenarios():
    named = [name for names in ALIKE for name in names]
    assert len(named) == len(set(named)) and set(named) <= {scenario.name for scenario in SCENARIOS}


IMPORTED_AND_CALLED = 2


def test_every_pass_over_runs_is_struck():
    passes = set(re.findall(r"\w+_once", inspect.getsource(Loops.runs)))
    told = "".join(path.read_text() for path in Path(__file__).parent.glob("*acts.py"))
    assert set(WITHIN.values()) <= {scenario.name for scenario in SCENARIOS}
    assert {one for one in passes if len(re.findall(rf"\b{one}\b", told)) < IMPORTED_AND_CALLED} == set(WITHIN)


def test_the_fast_tier_strikes_the_daily_verbs_and_meets_every_fault():
    fast = [one.values for one in struck(SCENARIOS, ALIKE) if not one.marks]
    names = [scenario.name for scenario, _ in fast]
    assert len(names) == len(set(names)) and set(names) == fast_scenarios([one.name for one in SCENARIOS], ALIKE)
    assert {"enqueue_bulk", "reap", "reconcile"} <= set(names)
    assert all(len(set(group) & set(names)) == 1 for group in ALIKE)
    assert {mode for _, mode in fast} == set(FaultMode)


def test_every_scenario_meets_every_fault():
    met = {(scenario.name, mode) for scenario, mode in (one.values for one in struck(SCENARIOS, ALIKE))}
    assert met == {(scenario.name, mode) for scenario in SCENARIOS for mode in FaultMode}


@pytest.mark.parametrize(("scenario", "mode"), struck(SCENARIOS, ALIKE))
async def test_nothing_is_lost_or_doubled_at_any_statement(scenario, mode, engine, clock, fork_server, record_property):
    for k in count(1):
        given = {"round": k}
        await scenario.arrange(engine, clock, given)
        after = await last_task_id(engine) if scenario.name.startswith("enqueue") else await before_round(engine, k)
        with strike_at(mode, k):
            fired, said = await strike(scenario, mode, k, engine.database.url, given, fork_server)
            await drain(engine, clock)
            await scenario.judge(Case(engine=engine, given=given, said=said, ended=await endings(engine, after=after)))
        if not fired:
            break
    record_property("strikes", k - 1)
    assert k > scenario.statements_min


async def before_round(engine, k):
    """The newest task that is not of this round."""
    return await engine.database.fetchval(
        "select coalesce(max(task_id), 0) from holdfast.body"
        " where (convert_from(input, 'utf8')::jsonb ->> 'round')::int < $1",
        k,
    )


async def strike(scenario, mode, k, url, given, fork_server):
    """Act with the fault set; who may repeat after an unknown outcome does so until it has an answer."""
    act = ACT_OF.get(scenario.name, scenario.name)
    if mode.is_deadly:
        told = fork_server.run(act, url=url, mode=mode, k=k, given=given)
        said = list(told.said)
        if scenario.is_repeatable and not said and act.endswith("_keyed"):
            await getattr(acts, act)(Stage(url=url, tap=None, given=given, say=said.append))
        return told.fired, said
    fault, said = StatementFault(mode, k), []
    stage = Stage(url=url, tap=fault, given=given, say=said.append)
    for _ in range(REPEATS_MAX):
        try:
            await getattr(acts, act)(stage)
            break
        except TRANSIENT:
            if not scenario.is_repeatable:
                break
    return fault.fired, said
