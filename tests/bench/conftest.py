"""A durable server of our own, and the smallest possible run on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from holdfast.bench.arena import enter
from holdfast.bench.marks import new_marks
from holdfast.bench.trial import Trial
from holdfast.settings import Settings
from holdfast.store.embedded.server import EmbeddedServer, start


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    running = start(tmp_path_factory.mktemp("bench") / "home", settings={"shared_buffers": "32MB"})
    yield running
    running.close()


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
