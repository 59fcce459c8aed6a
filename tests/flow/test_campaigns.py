"""A campaign over failed nodes re-drives their runs, each once."""

from __future__ import annotations

from tests.core.flows import a_diamond

from holdfast.core.outcome import Completed, Failed
from holdfast.dispatcher.campaigns import show_campaign, start_campaign
from holdfast.dispatcher.dead_look import dead_groups
from holdfast.testing import factories as a


async def settle_all(dispatcher, outcome_of):
    leases = await dispatcher.claim(100)
    for lease in leases:
        await dispatcher.settle(lease, outcome_of(lease))
    return len(leases)


def completed(_lease):
    return Completed(b"{}")


async def test_runs_of_a_group_are_re_driven_and_complete(dispatcher):
    flow = a_diamond()
    runs = await dispatcher.runs.start_many(flow, [{}] * 3)
    await settle_all(dispatcher, completed)
    await settle_all(dispatcher, lambda _lease: Failed(a.a_failure()))
    [group] = await dead_groups(dispatcher.engine.database, 1)
    assert group.count == 6
    view = await start_campaign(dispatcher.engine, 1, group.fingerprint, actor="ann", reason="fixed", canary=1)
    for _ in range(12):
        await dispatcher.campaigns_once()
        await settle_all(dispatcher, completed)
    assert [await dispatcher.runs.state(run) for run in runs] == ["completed"] * 3
    done = await show_campaign(dispatcher.engine, 1, int(view.campaign_id))
    assert (done.state, done.returned, done.failed, done.outstanding) == ("completed", 0, 0, 0)
    assert not await dead_groups(dispatcher.engine.database, 1)
