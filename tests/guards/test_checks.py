"""Every check passes on the statements as they are."""

from __future__ import annotations

import pytest
from tests.guards.checks.all import CHECKS


@pytest.mark.representative(one_in=6)
@pytest.mark.parametrize("name", CHECKS)
async def test_it_holds(name, stage):
    await CHECKS[name](stage)
