"""A server that can lose accepted work is refused by whatever works on it, unless that was asked for."""

from __future__ import annotations

import signal

import pytest

from holdfast.errors import Unavailable
from holdfast.store.database import LOCK_SECONDS_MAX
from holdfast.store.durability import require_durable


@pytest.fixture
def forgetful(seed) -> None:
    async def fsync(harness):
        return await harness.engine.database.fetchval("show fsync")

    if seed(fsync) == "on":
        pytest.skip("the server of HOLDFAST_TEST_URL is durable")


@pytest.mark.representative(one_in=3)
@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("command", [("server", "--no-http"), ("work", "{shop}:app"), ("dev",)])
def test_it_refuses_to_start(program, shop, command):
    ran = program.run(*(part.format(shop=shop) for part in command), HOLDFAST_UNSAFE="false")
    assert (ran.code, "database_not_durable" in ran.err, "--unsafe" in ran.err) == (1, True, True)


def test_unless_that_is_what_one_wants(program):
    process = program.start("server", "--no-http", "--unsafe", HOLDFAST_UNSAFE="false")
    assert any(line.startswith("Maintenance loops on") for line in process.stderr)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


async def test_every_session_waits_for_its_commits_and_not_for_ever_for_locks(engine):
    rows = await engine.database.fetch("select current_setting('synchronous_commit'), current_setting('lock_timeout')")
    assert [tuple(row) for row in rows] == [("on", f"{LOCK_SECONDS_MAX}s")]


async def test_what_a_pooler_swallowed_is_seen(engine):
    class Pooled:
        async def fetch(self, statement):
            async with engine.database.transaction() as session:
                await session.execute("set local synchronous_commit = off")
                return await session.fetch(statement)

    with pytest.raises(Unavailable, match="synchronous_commit"):
        await require_durable(Pooled(), is_unsafe=False)
