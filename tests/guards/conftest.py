from __future__ import annotations

import pytest
from tests.guards.checks.all import Stage


@pytest.fixture
def stage(engine, harness, clock):
    return Stage(engine, harness, clock)
