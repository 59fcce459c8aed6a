"""Every test that used a database ends with the invariants: whatever it did, the engine's promises must hold."""

from __future__ import annotations

import pytest

from holdfast.dispatcher.verify import Verified, verify
from holdfast.store.database import Database
from holdfast.testing.apart import run_apart

pytest_plugins = ["holdfast.testing.plugin"]


async def verified(url: str) -> Verified:
    database = await Database(url, sessions_max=1).open()
    try:
        return await verify(database)
    finally:
        await database.close()


@pytest.fixture
def holdfast_url(request, holdfast_url):
    """A database of the test's own, verified at the end unless the test breaks it on purpose."""
    yield holdfast_url
    if request.node.get_closest_marker("breaks_invariants") is None:
        broken = run_apart(verified(holdfast_url)).violations
        assert not broken, "\n".join(map(str, broken))
