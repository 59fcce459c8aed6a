"""The verbs behind the wall: scenarios of other folders, on an engine that is the tenant's and not the owner's."""

from __future__ import annotations

import pytest
from tests.engine.test_claim import *  # noqa: F403
from tests.flow.test_maps import *  # noqa: F403
from tests.flow.test_runs import *  # noqa: F403
from tests.flow.test_sub_flows import (  # noqa: F401
    test_a_node_can_be_a_run_of_another_flow,
    test_a_run_that_fails_fails_the_node_that_waits_for_it,
    test_canceling_a_run_cancels_the_runs_it_started,
    test_input_that_a_flow_does_not_take_fails_the_node,
)
from tests.flow.test_waits import *  # noqa: F403

from holdfast.engine.engine import Engine
from holdfast.testing.clock import DatabaseClock

pytestmark = pytest.mark.representative(one_in=3, family="wall")

# It asks for all invariants, which takes the owner.
del test_members_that_a_re_drive_upstream_replaces_keep_their_place  # noqa: F821


@pytest.fixture
async def whole(holdfast_url, holdfast_settings):
    async with Engine(holdfast_url, holdfast_settings, sessions_max=30) as opened:
        yield opened


@pytest.fixture
def holdfast_engine(whole):
    return whole.of(whole.tenant_id)


@pytest.fixture
async def holdfast_clock(whole):
    made = DatabaseClock(whole.database)
    yield made
    await made.reset()
