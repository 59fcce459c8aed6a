"""Every test that used a database ends with the invariants: whatever it did, the engine's promises must hold."""

from __future__ import annotations

from functools import cache

import asyncpg
import pytest

from holdfast.dispatcher.verify import Verified, is_warning, verify
from holdfast.store.database import Database
from holdfast.store.statements import statements_in
from holdfast.testing.apart import run_apart

pytest_plugins = ["holdfast.testing.plugin"]


@cache
def all_at_once() -> str:
    """Every invariant in one question, which names those that do not hold: a tenth of the time of asking each."""
    asked = (one for one in statements_in("invariants.sql") if not is_warning(one))
    return "\nunion all\n".join(f"select '{one.name}' where exists (\n{one.text}\n)" for one in asked)


async def broken_in(url: str) -> list[str]:
    """The invariants that do not hold, with evidence."""
    connection = await asyncpg.connect(url, server_settings={"enable_nestloop": "off", "jit": "off"})
    try:
        names = [row[0] for row in await connection.fetch(all_at_once())]
    finally:
        await connection.close()
    return [str(one) for one in (await verified(url)).violations] or names if names else []


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
        broken = run_apart(broken_in(holdfast_url))
        assert not broken, "\n".join(broken)
