"""`select holdfast.enqueue(…)` from any SQL client, inside its own transaction."""

from __future__ import annotations

import asyncpg
import pytest

from holdfast.core.retry import RetryPolicy
from holdfast.testing.factories import a_task

ENQUEUE = "select holdfast.enqueue($1, $2::jsonb, key => $3)"


@pytest.fixture
def enqueue(dispatcher):
    async def run(action="shop.charge", body='{"order": 7}', key=None, **named):
        extra = "".join(f", {name} => {value}" for name, value in named.items())
        call = f"select holdfast.enqueue($1, $2::jsonb, key => $3{extra})"
        return await dispatcher.engine.database.fetchval(call, action, body, key)

    return run


async def test_a_task_enqueued_by_sql_runs_like_any_other(dispatcher, enqueue):
    dispatcher.know("shop.charge")
    task_id = await enqueue()
    lease = await dispatcher.claim_one()
    assert (lease.task_id, lease.claimed.input) == (task_id, b'{"order": 7}')


async def test_queue_and_policy_are_what_a_worker_declared(dispatcher, enqueue):
    await dispatcher.engine.catalog.declare(1, "shop.charge", "money", RetryPolicy(max_retries=9), "")
    seen = await dispatcher.task(await enqueue())
    assert (seen.queue, seen.max_retries) == ("money", 9)


async def test_the_priority_is_what_a_worker_declared_unless_the_caller_says_otherwise(dispatcher, enqueue):
    catalog = dispatcher.engine.catalog
    await catalog.declare(1, "shop.charge", "money", RetryPolicy(), "", priority=1)
    await catalog.declare(1, "shop.charge", "money", RetryPolicy(), "", priority=2)
    assert (await dispatcher.task(await enqueue())).priority == 2
    assert (await dispatcher.task(await enqueue(priority=7))).priority == 7


async def test_the_callers_options_win(dispatcher, enqueue):
    seen = await dispatcher.task(await enqueue(queue="'mail'", priority=1, tags="'{eu}'"))
    assert (seen.queue, seen.priority, seen.tags) == ("mail", 1, ["eu"])


async def test_a_delay_makes_it_wait(dispatcher, enqueue):
    seen = await dispatcher.task(await enqueue(delay="interval '1 minute'"))
    assert (seen.due_at - seen.created_at).total_seconds() == 60


async def test_a_key_means_the_same_task_to_sql_and_to_python(dispatcher, enqueue):
    task = await dispatcher.enqueue(a_task(key="order-7", input={"order": 7}))
    assert await enqueue(key="order-7") == task.task_id


async def test_a_key_with_another_body_is_refused(enqueue):
    await enqueue(key="order-7")
    with pytest.raises(asyncpg.UniqueViolationError, match="another input"):
        await enqueue(body='{"order": 8}', key="order-7")


@pytest.mark.parametrize(
    "wrong",
    [
        {"action": "no spaces"},
        {"action": ""},
        {"body": "[1]"},
        {"key": " "},
        {"priority": 10},
        {"tenant": "'nobody'"},
        {"queue": "'no spaces'"},
    ],
    ids=str,
)
async def test_what_python_refuses_sql_refuses_too(enqueue, wrong):
    with pytest.raises(asyncpg.InvalidParameterValueError):
        await enqueue(**wrong)


async def test_it_rolls_back_with_its_transaction(dispatcher):
    async with dispatcher.engine.database.session() as session:
        transaction = session.connection.transaction()
        await transaction.start()
        await session.fetchval(ENQUEUE, "shop.charge", "{}", "order-7")
        await transaction.rollback()
    assert await dispatcher.engine.database.fetchval("select count(*) from holdfast.body") == 0
