"""What tenants may have at once, and that one of them does not hold up another."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.tenants.acme import WHO

import holdfast as hf
from holdfast.core.tasks.outcome import Completed
from holdfast.engine.audit import list_audit
from holdfast.engine.engine import Engine
from holdfast.engine.identity.tenants import create_tenant, find_tenant, limit_tenant, list_tenants
from holdfast.errors import Conflict, Invalid, NotFound, Unavailable
from holdfast.settings.settings import Settings
from holdfast.store.statements import sql
from holdfast.testing import factories as a


async def limit(engine, *, running=None, queued=None, name="default"):
    return await limit_tenant(engine.database, name, max_running=running, max_queued=queued, **WHO)


async def test_a_tenant_is_made_once_and_recorded_in_its_own_chain(engine, acme):
    assert acme.tenant_id > 1 and (await find_tenant(engine.database, "acme")).tenant_id == acme.tenant_id
    with pytest.raises(Conflict):
        await create_tenant(engine.database, "acme", **WHO)
    [row] = await list_audit(engine.database, acme.tenant_id)
    assert (row.verb, row.subject_id, row.actor) == ("tenant.create", "acme", "anna")


async def test_a_bad_name_is_refused(engine, subtests):
    for name in ["", "a b", "x" * 129, "drop table", "ü"]:
        with subtests.test(name=name):
            with pytest.raises(Invalid):
                await create_tenant(engine.database, name, **WHO)
            assert [view.name for view in await list_tenants(engine.database)] == ["default"]


async def test_a_bad_limit_is_refused(engine, subtests):
    for limits in [{"running": 0}, {"queued": -1}, {"running": 10**10}]:
        with subtests.test(limits=limits), pytest.raises(Invalid):
            await limit(engine, **limits)


async def test_limits_are_recorded_with_before_and_after_and_only_when_they_change(engine):
    await limit(engine, running=3)
    await limit(engine, running=3)
    [row] = await list_audit(engine.database, 1)
    assert (row.verb, row.before["max_running"], row.after["max_running"]) == ("tenant.limit", None, 3)


async def test_an_unknown_tenant_cannot_be_limited_or_worked_for(engine, holdfast_url):
    with pytest.raises(NotFound):
        await limit(engine, running=1, name="nobody")
    with pytest.raises(NotFound, match="Did you mean default"):
        async with Engine(holdfast_url, Settings(tenant="defualt")):
            pass


async def test_an_engine_works_for_the_tenant_of_its_settings(acme, holdfast_url):
    async with Engine(holdfast_url, Settings(tenant="acme")) as opened:
        assert opened.tenant_id == acme.tenant_id


async def test_no_more_than_the_limit_runs_at_once(engine, harness):
    await limit(engine, running=3)
    await harness.enqueue_many(a.a_task(), [{}] * 3)
    await harness.enqueue_many(a.a_task(queue="mail"), [{}] * 3)
    first, second = await harness.claim(10), await harness.claim(10, worker="second")
    assert (len(first), len(second)) == (3, 0)
    await harness.settle(first[0], Completed(b"null"))
    assert len(await harness.claim(10, worker="second")) == 1
    with pytest.raises(Conflict, match="at_limit"):
        await harness.claim_task((await harness.enqueue(a.a_task())).task_id)
    await limit(engine)
    assert len(await harness.claim(10)) == 3


async def test_the_limit_of_one_tenant_is_not_that_of_another(engine, harness, at_acme):
    await limit(engine, running=1)
    await harness.enqueue_many(a.a_task(), [{}] * 3)
    await at_acme.enqueue_many(a.a_task(), [{}] * 3)
    assert (len(await harness.claim(10)), len(await at_acme.claim(10))) == (1, 3)


async def test_more_than_may_be_queued_is_refused_and_nothing_stored(engine, harness):
    await limit(engine, queued=3)
    await harness.enqueue_many(a.a_task(), [{}] * 2)
    await harness.enqueue(a.a_delayed_task())
    with pytest.raises(Unavailable) as raised:
        await harness.enqueue(a.a_task())
    assert (raised.value.code, raised.value.fields["limit"]) == ("tenant_limit", 3)
    assert await engine.database.fetchval("select count(*) from holdfast.body") == 3
    await harness.claim(1)
    await harness.enqueue(a.a_task())


async def test_delayed_tasks_count_however_many_others_have_waiting(engine, acme, harness, at_acme):
    await harness.enqueue_many(a.a_delayed_task(), [{}] * 20)
    await limit(engine, queued=3, name="acme")
    await at_acme.enqueue_many(a.a_delayed_task(), [{}] * 3)
    counted = await engine.database.fetchval(sql("count_queued"), acme.tenant_id, 4)
    assert counted == 3
    with pytest.raises(Unavailable):
        await at_acme.enqueue(a.a_delayed_task())


async def test_a_key_that_is_there_is_answered_also_at_the_limit(engine, harness):
    await limit(engine, queued=1)
    mine = await harness.enqueue(a.a_task(key="one"))
    assert (await harness.enqueue(a.a_task(key="one"))).task_id == mine.task_id
    with pytest.raises(Unavailable):
        await harness.enqueue(a.a_task(key="two"))


async def test_clients_are_refused_one_by_one_and_in_batches(engine, holdfast_url):
    app = hf.App("shop", settings=Settings(url=holdfast_url))

    @app.action
    async def charge(order: int) -> None: ...

    await limit(engine, queued=5)
    async with app.client() as client:
        await client.enqueue_many(charge, [{"order": n} for n in range(4)])
        with pytest.raises(Unavailable):
            await client.enqueue_many(charge, [{"order": n} for n in range(2)])
        await client.enqueue(charge, order=5)
        with pytest.raises(Unavailable):
            await client.enqueue(charge, order=6)
    assert await engine.database.fetchval("select count(*) from holdfast.live") == 5


async def test_a_batch_without_end_is_undone_when_it_passes_the_limit(engine, holdfast_url):
    app = hf.App("shop", settings=Settings(url=holdfast_url))

    @app.action
    async def charge(order: int) -> None: ...

    async with app.client() as client:
        await client.enqueue(charge, order=0)
    await limit(engine, queued=25_000)
    async with app.client() as client:
        with pytest.raises(Unavailable):
            await client.enqueue_many(charge, ({"order": n} for n in range(40_000)))
    assert await engine.database.fetchval("select count(*) from holdfast.live") == 1


def looked_at(plan: dict[str, Any]) -> int:
    """How many rows of the hot table a plan passed over, kept or not."""
    below = sum(looked_at(part) for part in plan.get("Plans", ()))
    if plan.get("Relation Name") != "live":
        return below
    rows = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)
    return below + int(rows * plan["Actual Loops"])


@pytest.mark.parametrize("is_walled", [True, False])
async def test_a_large_tenant_does_not_delay_the_first_task_of_another(engine, acme, harness, at_acme, is_walled):
    """Lanes belong to a tenant: a look touches what is in one's own lanes, however much is in others'."""
    await harness.enqueue_many(a.a_task(), [{}] * 20_000)
    await at_acme.enqueue(a.a_task())
    worker = await at_acme.worker_id()
    database = at_acme.engine.database if is_walled else engine.database
    told = await database.fetchval("explain (analyze, format json) " + sql("lane_heads"), [a.ACTION], None, worker)
    assert looked_at(json.loads(told)[0]["Plan"]) <= 2
    assert len(await at_acme.claim(5)) == 1
