from __future__ import annotations

import pytest
from tests.datasets.hands import declared
from tests.stories import playing_on


@pytest.fixture
async def generation(engine):
    """Version 1 of `orders`, keyed by its order, current from the start."""
    return await declared(engine)


@pytest.fixture
def on_engine(holdfast_url):
    with playing_on(holdfast_url) as play:
        yield play
