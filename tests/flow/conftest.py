from __future__ import annotations

import pytest
from tests.stories import playing_on


@pytest.fixture
def on_engine(holdfast_url):
    with playing_on(holdfast_url) as play:
        yield play
