"""The sweep over what changes the schema: migrating, and beginning and dropping blocks of ids."""

from __future__ import annotations

from itertools import count

import pytest
from tests.crash import acts
from tests.crash.repair import drain, free_of_victims
from tests.crash.strikes import strike_at

from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.lifecycle.tasks.enqueue import EnqueueOrder, enqueue, intern
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.store.database import TRANSIENT
from holdfast.store.migrate import known, migrate, schema_version
from holdfast.testing.crash import FaultMode, Stage, StatementFault

pytestmark = [pytest.mark.crash, pytest.mark.representative(one_in=2 * len(FaultMode), family="schema")]


class Passing:
    """Counts statements and lets them pass."""

    def __init__(self):
        self.count = 0

    def before(self, _statement):
        self.count += 1

    def after(self, _statement): ...


async def strike(act, mode, k, url, given, fork_server):
    if mode.is_deadly:
        return fork_server.run(act, url=url, mode=mode, k=k, given=given).fired
    fault = StatementFault(mode, k)
    try:
        await getattr(acts, act)(Stage(url=url, tap=fault, given=given, say=lambda _word: None))
    except TRANSIENT:
        assert fault.fired
    return fault.fired


@pytest.mark.parametrize("mode", FaultMode, ids=str)
async def test_a_migration_is_there_or_not_there(mode, engine, fork_server, record_property, tmp_path):
    """The next process continues where the dead one stopped: each migration is struck at each of its statements."""
    (tmp_path / "0002_column.sql").write_text("alter table holdfast.live add column added int;")
    (tmp_path / "0003_table.sql").write_text("create table holdfast.added (tenant_id int);")
    migrations, given = known(tmp_path), {"later": str(tmp_path)}
    passing = Passing()
    await migrate(engine.database, migrations)
    await acts.migrate_all(Stage(url=engine.database.url, tap=passing, given=given, say=lambda _word: None))
    done, opening = divmod(passing.count, len(migrations))
    async with engine.database.session() as session:
        await session.execute("drop schema if exists holdfast cascade")
    version, strikes, k = 0, 0, 1
    while version < len(migrations):
        with strike_at(mode, k):
            fired = await strike("migrate_all", mode, k, engine.database.url, given, fork_server)
            await free_of_victims(engine)
            reached = await schema_version(engine.database)
            assert reached in (version, version + 1) if fired else reached == len(migrations)
        strikes += fired
        # Not again at what finds the earlier ones done.
        k = k + 1 if reached == version else opening + done * reached + 1
        version = reached
    assert not await migrate(engine.database, migrations)
    record_property("strikes", strikes)
    assert strikes > 4 * len(migrations)


@pytest.mark.parametrize("mode", FaultMode, ids=str)
async def test_work_is_accepted_whatever_happened_to_retention(mode, engine, clock, fork_server, record_property):
    """Right after the crash, before any other pass: an id handed out must have a place to be stored in."""
    order = EnqueueOrder(tenant_id=DEFAULT_TENANT_ID, queue="default", action="shop.charge", policy=RetryPolicy())
    for k in count(1):
        await enqueue(engine, await intern(engine.catalog, order), [b'{"number": 1}'])
        await drain(engine, clock)
        await clock.advance("2d")
        with strike_at(mode, k):
            fired = await strike("retain", mode, k, engine.database.url, {"days": 1.0}, fork_server)
            await free_of_victims(engine)
            for _ in range(2):
                await enqueue(engine, await intern(engine.catalog, order), [b'{"number": 2}'])
            await drain(engine, clock)
        if not fired:
            break
    record_property("strikes", k - 1)
    assert k > 7
    assert await engine.database.fetchval("select count(*) from holdfast.block") > 1
