"""Over HTTP, too, what belongs to another tenant does not exist: the same answer as for what never did."""

from __future__ import annotations

import re

import pytest
from tests.each import each
from tests.tenants.acme import CANARY, MISSING, acme, at_acme, rows_of, theirs  # noqa: F401 - fixtures

from holdfast.api.identity import Access
from holdfast.api.server import ENDPOINTS
from holdfast.dispatcher.tenants import limit_tenant
from holdfast.store.tenant import TENANT_ROLE
from holdfast.testing import factories as a

KINDS = {
    "task_id": "task",
    "run_id": "run",
    "dead_letter_id": "letter",
    "campaign_id": "campaign",
    "worker_id": "worker",
    "name": "schedule",
    "schedule": "schedule",
    "dataset": "dataset",
    "queue": "queue",
    "fingerprint": "fingerprint",
    "key": "effect",
    "action": "action",
    "node": "task",
    "version": "task",
    "token_id": "task",
    "member_id": "task",
}
"""What the placeholders of paths stand for."""

WITH_ID = [one for one in ENDPOINTS if "{" in one.path and one.access is not Access.PUBLIC]


def named(path: str) -> list[str]:
    found = re.findall(r"{(\w+)(?::\w+)?}", path)
    assert set(found) <= set(KINDS), f"say in KINDS what these of {path} stand for"
    return [KINDS[name] for name in found]


def filled(path: str, given: dict) -> str:
    values = iter([str(given[kind]) for kind in named(path)])
    return re.sub(r"{[^}]*}", lambda _: next(values), path)


def without_ids(answer, path: str, given: dict) -> str:
    text = answer.body.decode()
    for kind in named(path):
        text = re.sub(rf"\b{re.escape(str(given[kind]))}\b", "ID", text)
    return text


async def test_a_strangers_id_is_answered_like_one_that_is_not_there(call, engine, acme, theirs):  # noqa: F811
    """All routes on one stage: none of them may change it, so each finds it as the first did."""
    before = await rows_of(engine.database, acme.tenant_id), await rows_of(engine.database, 1)
    # Who rules on an effect names it for their own tenant: there is nothing to be found.
    for endpoint in [one for one in WITH_ID if not one.path.endswith(("/allow", "/deny"))]:
        method, path = endpoint.method, endpoint.path
        body = None if method in ("GET", "DELETE") else {"reason": "because"}
        found, missing = [await call(method, filled(path, given), body) for given in (theirs, MISSING)]
        assert found.status == missing.status, (method, path, found.body, missing.body)
        assert found.status >= 400 or method == "GET", (method, path, found.body)
        told = without_ids(found, path, theirs)
        assert told == without_ids(missing, path, MISSING), (method, path)
        assert found.headers.keys() == missing.headers.keys() and CANARY not in told, (method, path)
    assert WITH_ID
    assert (await rows_of(engine.database, acme.tenant_id), await rows_of(engine.database, 1)) == before


async def test_no_list_shows_a_stranger(call, theirs):  # noqa: F811
    lists = [one for one in ENDPOINTS if "{" not in one.path and one.method == "GET"]
    for endpoint in lists:
        if not endpoint.path.endswith("/events"):
            answer = await call.get(endpoint.path)
            assert CANARY not in answer.body.decode(), (endpoint.path, answer.body)


async def test_a_strangers_worker_cannot_be_used(call, theirs):  # noqa: F811
    for worker_id in (theirs["worker"], MISSING["worker"]):
        answer = await call.post("/internal/task-claim", {"worker_id": str(worker_id), "limit": 1})
        assert (answer.status, answer.json["code"]) == (409, "worker_not_registered")


async def test_a_strangers_attempt_cannot_be_completed_or_extended(call, engine, acme, theirs):  # noqa: F811
    before, lease = await rows_of(engine.database, acme.tenant_id), theirs["lease"]
    named = {"task_id": lease.task_id, "attempt": lease.attempt, "lease_token": str(lease.token)}
    assert (await call.post("/internal/heartbeat", named)).status == 409
    answer = await call.post("/internal/task-complete", named | {"status": "completed", "outputs": 1})
    assert answer.status == 409 and CANARY not in answer.body.decode()
    assert await rows_of(engine.database, acme.tenant_id) == before


@each("where", ["query", "header", "body"])
async def test_a_tenant_that_a_request_names_decides_nothing(call, theirs, where):  # noqa: F811
    path, headers = f"/api/v1/tasks/{theirs['task']}", {}
    if where == "query":
        assert (await call.get(f"{path}?tenant_id=2&tenant=acme")).status in (400, 404)
    elif where == "header":
        headers = {"x_tenant_id": "2", "x_tenant": "acme", "holdfast_tenant": "acme"}
        assert (await call.get(path, **headers)).status == 404
    else:
        body = {"reason": "r", "tenant_id": 2, "tenant": "acme"}
        assert (await call.post(f"{path}/cancel", body)).status in (400, 404, 422)


async def test_what_a_request_does_is_done_behind_the_wall(call, dispatcher, engine, worker):
    """The server's own log of statements: whoever touched the tasks was the role of tenants."""
    async with engine.database.session() as session:
        await session.execute(
            """
            create table public.seen (who text);
            grant insert on public.seen to public;
            create function public.note() returns trigger language plpgsql as
              'begin insert into public.seen values (current_user); return null; end';
            create trigger noted after update on holdfast.live for each statement execute function public.note();
            """
        )
    await dispatcher.enqueue(a.a_task())
    await call.post("/internal/task-claim", {"worker_id": worker, "limit": 5})
    assert {row["who"] for row in await engine.database.fetch("select who from public.seen")} == {TENANT_ROLE}


async def test_a_full_tenant_is_told_to_come_back(call, engine):
    from holdfast.api.problems import problem
    from holdfast.errors import Unavailable

    await limit_tenant(engine.database, "default", max_running=None, max_queued=1, actor="anna", reason="")
    await engine.catalog.allowance.require(1, 1)
    with pytest.raises(Unavailable) as raised:
        await engine.catalog.allowance.require(1, 2)
    answer = problem(raised.value)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
