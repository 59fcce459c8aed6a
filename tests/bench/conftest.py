"""A durable server of our own, and the smallest possible run on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from holdfast.settings.settings import Settings
from holdfast.store.embedded.server import EmbeddedServer, start
from holdfast.testing.databases import remove_home, throw_away_home
from holdfast_bench.arena import enter
from holdfast_bench.marks import new_marks
from holdfast_bench.trial import Trial


@pytest.fixture(scope="package")
def server() -> Iterator[EmbeddedServer]:
    home = throw_away_home()
    running = start(home, settings={"shared_buffers": "32MB"})
    yield running
    running.close()
    remove_home(home)


@pytest.fixture
async def trial(server: EmbeddedServer) -> AsyncIterator[Trial]:
    with new_marks(100) as marks:
        async with enter(Settings(url=server.url)) as arena:
            yield Trial(
                arena=arena,
                marks=marks,
                tasks=20,
                rounds=1,
                processes=1,
                slots=10,
                is_quick=True,
                is_full=False,
                say=lambda _text: None,
            )
