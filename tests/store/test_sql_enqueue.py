"""`select holdfast.enqueue(…)` from any SQL client, inside its own transaction."""

from __future__ import annotations

import asyncio
import unicodedata

import asyncpg
import pytest
from tests.by_sql import declare

from holdfast.core.tasks.retry import RetryPolicy
from holdfast.core.values.bounds import (
    DELAY_SECONDS_MAX,
    INPUT_BYTES_MAX,
    KEY_CHARACTERS_MAX,
    NESTING_MAX,
    TAG_CHARACTERS_MAX,
    TAGS_MAX,
)
from holdfast.testing.factories import a_task

ENQUEUE = "select holdfast.enqueue($1, $2::jsonb, key => $3)"


def nested(levels):
    return '{"a": ' * levels + "1" + "}" * levels


@pytest.fixture
async def enqueue(harness):
    await declare(harness.engine, "shop.charge")

    async def run(action="shop.charge", body='{"order": 7}', key=None, **named):
        extra = "".join(f", {name} => {value}" for name, value in named.items())
        call = f"select holdfast.enqueue($1, $2::jsonb, key => $3{extra})"
        return await harness.engine.database.fetchval(call, action, body, key)

    return run


async def test_a_task_enqueued_by_sql_runs_like_any_other(harness, enqueue):
    harness.know("shop.charge")
    task_id = await enqueue()
    lease = await harness.claim_one()
    assert (lease.task_id, lease.claimed.input) == (task_id, b'{"order": 7}')


async def test_queue_and_policy_are_what_a_worker_declared(harness, enqueue):
    await harness.engine.catalog.declare(1, "shop.charge", "money", RetryPolicy(max_retries=9), "")
    seen = await harness.task(await enqueue())
    assert (seen.queue, seen.max_retries) == ("money", 9)


async def test_the_priority_is_what_a_worker_declared_unless_the_caller_says_otherwise(harness, enqueue):
    catalog = harness.engine.catalog
    await catalog.declare(1, "shop.charge", "money", RetryPolicy(), "", priority=1)
    await catalog.declare(1, "shop.charge", "money", RetryPolicy(), "", priority=2)
    assert (await harness.task(await enqueue())).priority == 2
    assert (await harness.task(await enqueue(priority=7))).priority == 7


async def test_the_callers_options_win(harness, enqueue):
    seen = await harness.task(await enqueue(queue="'mail'", priority=1, tags="'{eu}'"))
    assert (seen.queue, seen.priority, seen.tags) == ("mail", 1, ["eu"])


async def test_a_delay_makes_it_wait(harness, enqueue):
    seen = await harness.task(await enqueue(delay="interval '1 minute'"))
    assert (seen.due_at - seen.created_at).total_seconds() == 60


async def test_a_key_means_the_same_task_to_sql_and_to_python(harness, enqueue):
    task = await harness.enqueue(a_task(key="order-7", input={"order": 7}))
    assert await enqueue(key="order-7") == task.task_id


async def test_a_key_with_another_body_is_refused(enqueue):
    await enqueue(key="order-7")
    with pytest.raises(asyncpg.UniqueViolationError, match="another input"):
        await enqueue(body='{"order": 8}', key="order-7")


async def test_what_python_refuses_sql_refuses_too(harness, enqueue, subtests):
    cases = [
        ("invalid_name", {"action": "no spaces"}),
        ("invalid_name", {"action": ""}),
        ("invalid_name", {"action": None}),
        ("invalid_name", {"queue": "'no spaces'"}),
        ("invalid_input", {"body": "[1]"}),
        ("invalid_input", {"body": None}),
        ("payload_too_large", {"body": f'{{"a": "{"x" * INPUT_BYTES_MAX}"}}'}),
        ("payload_too_deep", {"body": nested(NESTING_MAX + 1)}),
        ("payload_too_deep", {"body": f'{{"a": {"[" * NESTING_MAX}{"]" * NESTING_MAX}}}'}),
        ("invalid_key", {"key": " "}),
        ("invalid_key", {"key": "x" * (KEY_CHARACTERS_MAX + 1)}),
        ("invalid_key", {"key": "order\n7"}),
        ("invalid_key", {"key": "order\u200b7"}),
        ("invalid_priority", {"priority": 10}),
        ("invalid_priority", {"priority": -1}),
        ("invalid_delay", {"delay": "interval '-1 second'"}),
        ("invalid_delay", {"delay": f"interval '{DELAY_SECONDS_MAX + 1} seconds'"}),
        ("invalid_delay", {"delay": "interval '170000000 years'"}),
        ("invalid_tag", {"tags": f"array(select n::text from generate_series(0, {TAGS_MAX}) n)"}),
        ("invalid_tag", {"tags": "array['eu', ' ']"}),
        ("invalid_tag", {"tags": "array['eu', null]"}),
        ("invalid_tag", {"tags": "array[E'e\tu']"}),
        ("invalid_tag", {"tags": f"array[repeat('x', {TAG_CHARACTERS_MAX + 1})]"}),
        ("tenant_not_found", {"tenant": "'nobody'"}),
        ("action_not_found", {"action": "shop.chrage"}),
        ("action_not_found", {"action": "shop.chrage", "queue": "'mail'", "key": "order-7"}),
    ]
    for code, wrong in cases:
        with subtests.test(code=code, wrong=wrong):
            with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
                await enqueue(**wrong)
            assert refused.value.hint == code
            for table in ("body", "live", "idempotency"):
                assert await harness.engine.database.fetchval(f"select count(*) from holdfast.{table}") == 0


async def test_what_python_takes_sql_takes_too(enqueue, subtests):
    cases = [
        {"body": nested(NESTING_MAX)},
        {"body": f'{{"a": "{"[" * 200}"}}'},
        {"key": "ö" * KEY_CHARACTERS_MAX},
        {"key": "a key with spaces, 鍵 and 🔑"},
        {"delay": f"interval '{DELAY_SECONDS_MAX} seconds'"},
        {"delay": "interval '10 years'"},
        {"delay": "interval '0'"},
        {"tags": f"array(select rpad(n::text, {TAG_CHARACTERS_MAX}, 'x') from generate_series(1, {TAGS_MAX}) n)"},
        {"tags": "'{}'"},
    ]
    for right in cases:
        with subtests.test(right=right):
            assert await enqueue(**right)


async def test_tags_are_kept_once_and_in_their_order(harness, enqueue):
    assert (await harness.task(await enqueue(tags="array['b', 'a', 'b', 'c', 'a']"))).tags == ["b", "a", "c"]


async def test_what_is_printable_is_the_same_to_sql_and_to_python(harness):
    """Where Unicode says what a character is: for the rest every release of Python has its own answer."""
    codes = (*range(1, 0x3100), *range(0xE000, 0x10000), *range(0x11000, 0x11100), *range(0xE0000, 0xE0100))
    assigned = [chr(n) for n in codes if unicodedata.category(chr(n)) != "Cn"]
    rows = await harness.engine.database.fetch(
        "select c from unnest($1::text[]) as g (c) where not holdfast.is_printable(c)", assigned
    )
    assert {row["c"] for row in rows} == {character for character in assigned if not character.isprintable()}


PASS_BY = """
    create function pass_by() returns trigger language plpgsql as
      'begin perform pg_advisory_xact_lock_shared(26); return null; end';
    create trigger pass_by after insert on holdfast.idempotency for each statement execute function pass_by()
"""
"""Whoever asked for a key waits here until he may look for its task."""


async def test_a_key_whose_task_is_deleted_before_it_is_read_is_free_again(harness, enqueue):
    first = await enqueue(key="order-7")
    async with harness.engine.database.session() as other:
        await other.execute(PASS_BY)
        await other.fetch("select pg_advisory_lock(26)")
        asked = asyncio.ensure_future(enqueue(key="order-7"))
        while not await other.fetchval("select count(*) from pg_locks where locktype = 'advisory' and not granted"):
            assert not asked.done()
        await other.execute("delete from holdfast.idempotency; delete from holdfast.live; delete from holdfast.body")
        await other.fetch("select pg_advisory_unlock(26)")
        second = await asked
    assert first != second is not None
    assert await enqueue(key="order-7") == second


async def test_an_action_of_another_tenant_is_not_known(harness, enqueue):
    await harness.engine.database.fetch("insert into holdfast.tenant (tenant_id, name) values (7, 'acme')")
    with pytest.raises(asyncpg.InvalidParameterValueError, match="No worker ever declared the action"):
        await enqueue(tenant="'acme'")


async def test_it_rolls_back_with_its_transaction(harness, enqueue):
    async with harness.engine.database.session() as session:
        transaction = session.connection.transaction()
        await transaction.start()
        await session.fetchval(ENQUEUE, "shop.charge", "{}", "order-7")
        await transaction.rollback()
    assert await harness.engine.database.fetchval("select count(*) from holdfast.body") == 0
