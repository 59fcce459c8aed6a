from __future__ import annotations

import pytest
from tests.datasets.hands import declared


@pytest.fixture
async def generation(engine):
    """Version 1 of `orders`, keyed by its order, current from the start."""
    return await declared(engine)
