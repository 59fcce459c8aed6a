from __future__ import annotations

import pytest
from tests.guards.checks.all import Stage


@pytest.fixture
def stage(engine, dispatcher, clock):
    return Stage(engine, dispatcher, clock)
