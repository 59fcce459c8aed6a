"""The wall itself: plain SQL as the role of tenants, with no verb in between to forget a condition."""

from __future__ import annotations

import asyncpg
import pytest
from tests.by_sql import declare
from tests.tenants.acme import CANARY, rows_of, tables

from holdfast.core.tasks.outcome import Completed
from holdfast.engine.queries.verify import verify
from holdfast.errors import Unavailable
from holdfast.store.database import Database
from holdfast.store.statements import sql
from holdfast.store.tenancy import TENANT_ROLE
from holdfast.testing import factories as a

DENIED = asyncpg.InsufficientPrivilegeError
VIEWS = ("tasks", "attempts", "effects", "node_states")
BY_PARENT = ("dataset_build", "campaign_letter", "dead_lease", "tally")


@pytest.fixture
async def connection(holdfast_url):
    """A plain connection that has become the role, for no tenant yet."""
    opened = await asyncpg.connect(holdfast_url)
    await opened.execute(f"set role {TENANT_ROLE}")
    yield opened
    await opened.close()


async def count(connection, name: str) -> int:
    return await connection.fetchval(f"select count(*) from holdfast.{name}")


async def test_no_row_of_a_stranger_is_seen(connection, engine, theirs):
    names = [*await tables(engine.database), *VIEWS, *BY_PARENT]
    for setting in (None, "", "1", "999", "0", "-1"):
        if setting is not None:
            await connection.execute(f"set holdfast.tenant_id = '{setting}'")
        seen = {name: await count(connection, name) for name in names}
        assert {name: n for name, n in seen.items() if n} == ({"tenant": 1} if setting == "1" else {}), setting


async def test_the_tenant_sees_its_rows_and_the_views_of_them(connection, engine, acme, theirs):
    await connection.execute(f"set holdfast.tenant_id = '{acme.tenant_id}'")
    assert await count(connection, "live") > 0 and await count(connection, "tasks") > 0
    assert await connection.fetchval("select array_agg(distinct tenant) from holdfast.tasks") == ["acme"]
    assert await count(connection, "campaign_letter") == await engine.database.fetchval(
        "select count(*) from holdfast.campaign_letter"
    )


async def test_a_setting_that_is_no_number_is_an_error_and_not_everything(connection, theirs):
    await connection.execute("set holdfast.tenant_id = 'acme'")
    with pytest.raises(asyncpg.DataError):
        await count(connection, "live")


async def test_nothing_of_a_strangers_is_changed_or_written_in_its_name(connection, engine, acme, theirs):
    before = await rows_of(engine.database, acme.tenant_id)
    await connection.execute("set holdfast.tenant_id = '1'")
    assert await connection.execute("update holdfast.live set priority = 0") == "UPDATE 0"
    assert await connection.execute("delete from holdfast.body") == "DELETE 0"
    assert await connection.execute("delete from holdfast.dead_letter") == "DELETE 0"
    for name, columns, values in (
        ("signal", "tenant_id, wait_key, payload", f"{acme.tenant_id}, 'go', ''"),
        ("queue", "tenant_id, name", f"{acme.tenant_id}, 'mine'"),
        ("event", "tenant_id, kind, task_ids, attempts", f"{acme.tenant_id}, 'task.started', '{{1}}', '{{1}}'"),
        ("idempotency", "tenant_id, key, task_id, digest", f"{acme.tenant_id}, '{CANARY}', 1, ''"),
        ("campaign_letter", "campaign_id, dead_letter_id, task_id, leg", f"{theirs['campaign']}, 9, 9, 1"),
        ("dead_lease", "task_id, holder, expires_at", f"{theirs['failed']}, 'me', now()"),
    ):
        with pytest.raises(DENIED, match="row-level security"):
            await connection.execute(f"insert into holdfast.{name} ({columns}) values ({values})")
    assert await rows_of(engine.database, acme.tenant_id) == before


FORBIDDEN = [
    "select * from holdfast.body_0",
    "select * from holdfast.attempt_0",
    "select * from holdfast.node_0",
    "copy holdfast.body_0 to stdout",
    "update holdfast.tenant set max_running = null",
    "insert into holdfast.tenant (name) values ('mine')",
    "update holdfast.audit set actor = 'nobody'",
    "delete from holdfast.audit",
    "truncate holdfast.audit",
    "delete from holdfast.audit_head",
    "truncate holdfast.live",
    "update holdfast.event set kind = 'x'",
    "select setval('holdfast.task_id', 1)",
    "select setval('holdfast.span', 1)",
    "select * from holdfast.migration",
    "select * from holdfast.block",
    "alter table holdfast.live disable row level security",
    "drop policy tenant on holdfast.live",
    "create table holdfast.mine (a int)",
    "create policy mine on holdfast.live using (true)",
    "select holdfast.begin_block()",
    "select holdfast.drop_block(0)",
    "select * from holdfast_data.orders_v1",
    "select * from holdfast_data.orders",
]


async def test_what_the_role_may_not_do_is_refused(connection, theirs):
    await connection.execute("set holdfast.tenant_id = '1'")
    for statement in FORBIDDEN:
        with pytest.raises(DENIED):
            await connection.execute(statement)
            pytest.fail(f"{statement} was done")


async def test_copy_shows_what_a_select_shows_and_takes_nothing_in(connection, tmp_path, theirs):
    await connection.execute("set holdfast.tenant_id = '1'")
    file = tmp_path / "rows"
    await connection.copy_from_query("select * from holdfast.live", output=file)
    assert file.read_bytes() == b""
    await connection.copy_from_table("live", schema_name="holdfast", output=file)
    assert file.read_bytes() == b""
    with pytest.raises(asyncpg.PostgresError):
        await connection.copy_records_to_table("signal", schema_name="holdfast", columns=["tenant_id"], records=[(1,)])


SHOWING = [
    ("select * from holdfast.locate_task($1)", "run"),
    ("select * from holdfast.nodes_of($1)", "run"),
    ("select holdfast.ready_since($1, 0)", "run"),
    ("select holdfast.recovery_options($1)", "failed"),
]


async def test_a_function_shows_nothing_of_strangers(connection, theirs):
    await connection.execute("set holdfast.tenant_id = '1'")
    for call, kind in SHOWING:
        assert await connection.fetch(call, theirs[kind]) == await connection.fetch(call, 999_999_999)


AS_OWNER = [
    "select holdfast.count_rows(which, null)",
    "select holdfast.drop_staged(which, 1, gen_random_uuid(), 0)",
    "select holdfast.move_staged(which, 1, gen_random_uuid(), 0, '', 'replace')",
    "select holdfast.remove_appended_rows(which, '', 1)",
    "select holdfast.remove_owed_rows(which, 1, 1)",
    "select holdfast.drop_generation_tables(which)",
    "select holdfast.refresh_dataset_view(which, false)",
]


async def test_what_runs_with_the_owners_rights_asks_whose_it_is(connection, theirs):
    for setting in ("1", "", "999"):
        await connection.execute(f"set holdfast.tenant_id = '{setting}'")
        for call in AS_OWNER:
            with pytest.raises(asyncpg.NoDataFoundError):
                await connection.execute(call.replace("which", "1"))
                pytest.fail(f"{call} was done")


async def test_a_stranger_cannot_be_enqueued_for_with_sql(connection, engine, theirs):
    await declare(engine, "shop.charge")
    await connection.execute("set holdfast.tenant_id = '1'")
    with pytest.raises(asyncpg.PostgresError, match="no tenant acme"):
        await connection.execute("select holdfast.enqueue('shop.charge', tenant => 'acme')")
    assert await connection.fetchval("select holdfast.enqueue('shop.charge')")


async def test_nothing_of_a_tenant_stays_on_the_connection(engine, acme, theirs):
    whole = await Database(engine.database.url, sessions_max=1).open()
    try:
        from holdfast.store.tenancy import TenantDatabase

        behind = TenantDatabase(whole, acme.tenant_id)
        assert await behind.fetchval("select current_user::text") == TENANT_ROLE
        assert await behind.fetchval("select current_setting('holdfast.tenant_id')") == str(acme.tenant_id)
        assert await whole.fetchval("select current_user::text") != TENANT_ROLE
        assert not await whole.fetchval("select current_setting('holdfast.tenant_id', true)")
        with pytest.raises(asyncpg.DivisionByZeroError):
            await behind.fetch("select 1 / 0")
        assert await whole.fetchval("select current_user::text") != TENANT_ROLE
        # What the setting is after a transaction that had one: '' and not null.
        assert await TenantDatabase(whole, 1).fetchval("select count(*) from holdfast.live") == 0
        async with behind.session() as session:
            async with session.transaction():
                await session.fetch("update holdfast.live set priority = 9")
                with pytest.raises(asyncpg.DivisionByZeroError):
                    async with session.transaction():
                        await session.fetch("select 1 / 0")
                assert await session.fetchval("select current_user::text") == TENANT_ROLE
            assert await session.fetchval("select min(priority) from holdfast.live") == 9
    finally:
        await whole.close()


async def test_without_the_role_nothing_runs(engine, acme, monkeypatch):
    behind = engine.of(acme.tenant_id).database
    monkeypatch.setattr(behind, "_begin", behind._begin.replace(TENANT_ROLE, "holdfast_no_such_role"))
    with pytest.raises(Unavailable) as raised:
        await behind.fetch("select 1")
    assert raised.value.code == "tenant_role_missing"
    assert await engine.database.fetchval("select current_user::text") != TENANT_ROLE


async def test_a_block_made_later_is_behind_the_wall(connection, engine, harness, acme, at_acme):
    async with engine.database.session() as session:
        await session.execute("select holdfast.begin_block()")
        fresh = await session.fetchval("select max(block) from holdfast.block")
        await session.execute(
            f"select setval('holdfast.task_id', (select first_id from holdfast.block where block = {fresh}))"
        )
    lease = await a.a_running_task(at_acme)
    await at_acme.settle(lease, Completed(b"null"))
    await connection.execute("set holdfast.tenant_id = '1'")
    assert await count(connection, "body") == 0
    with pytest.raises(DENIED):
        await connection.execute(f"select * from holdfast.body_{fresh}")
    assert (await verify(engine.database)).is_sound


@pytest.mark.breaks_invariants
async def test_a_table_added_without_a_wall_is_found_and_put_behind_one(engine, connection):
    async with engine.database.session() as session:
        await session.execute("create table holdfast.added (tenant_id int, note text)")
    assert [one.name for one in (await verify(engine.database)).violations] == ["every_table_has_row_level_security"]
    with pytest.raises(DENIED):
        await count(connection, "added")
    await engine.database.fetch("select holdfast.secure_tenants()")
    assert (await verify(engine.database)).is_sound and await count(connection, "added") == 0


async def test_keys_that_come_once_begin_with_the_tenant(engine):
    """A key over all tenants would tell one what another has. Only numbers and tokens that we make are such keys."""
    rows = await engine.database.fetch(
        """
        select c.relname::text as name, i.indexrelid::regclass::text as index
        from pg_index i
        join pg_class c on c.oid = i.indrelid
        where c.relnamespace = 'holdfast'::regnamespace and i.indisunique and not c.relispartition and exists (
          select from pg_attribute a
          where a.attrelid = c.oid and a.attnum = any(i.indkey) and not a.attisdropped
            and a.atttypid in ('text'::regtype, 'bytea'::regtype, 'jsonb'::regtype)
        ) and not exists (
          select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant_id' and a.attnum = any(i.indkey)
        )
        """
    )
    allowed = {
        "tenant": "the name of a tenant itself",
        "dataset": "a place in the database holds one table of a name",
        "step": "begins with a task",
        "snapshot": "begins with a flow",
        "token": "a random number",
        "member": "an account belongs to one tenant",
        "secret": "of the installation",
        "launcher": "a profile of the installation",
        "launch_slot": "of a profile of the installation",
    }
    assert {row["name"] for row in rows} <= set(allowed)


async def test_the_owner_passes_without_a_filter(holdfast_databases, engine):
    """An owner who is no superuser is let through by a policy that costs nothing for each row."""
    async with engine.database.session() as session:
        plan = await session.fetch(
            "explain (costs off) " + sql("lane_heads").replace("$1", "'{x}'").replace("$2", "null").replace("$3", "1")
        )
    assert "current_setting" not in "\n".join(row[0] for row in plan)
