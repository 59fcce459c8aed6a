"""Over HTTP, too, what belongs to another tenant does not exist: the same answer as for what never did."""

from __future__ import annotations

import re

import pytest
from tests.each import each
from tests.tenants.acme import CANARY, MISSING, acme, at_acme, rows_of, theirs  # noqa: F401 - fixtures

from holdfast.api.identity import Access
from holdfast.api.server import ENDPOINTS
from holdfast.dispatcher.tenants import create_tenant, limit_tenant
from holdfast.store.tenant import TENANT_ROLE
from holdfast.testing import factories as a

KINDS = {
    "task_id": "task",
    "run_id": "run",
    "dead_letter_id": "letter",
    "campaign_id": "campaign",
    "worker_id": "worker",
    "name": "schedule",  # acme's webhook has the same name
    "schedule": "schedule",
    "dataset": "dataset",
    "queue": "queue",
    "fingerprint": "fingerprint",
    "key": "effect",
    "action": "action",
    "node": "task",
    "version": "task",
    "token_id": "token",
    "member_id": "member",
}
"""What the placeholders of paths stand for."""

WITH_ID = [one for one in ENDPOINTS if "{" in one.path and one.access is not Access.PUBLIC]


def named(path: str) -> list[str]:
    found = re.findall(r"{(\w+)(?::\w+)?}", path)
    assert set(found) <= set(KINDS), f"say in KINDS what these of {path} stand for"
    return ["action" if path.startswith("/api/v1/actions/") else KINDS[name] for name in found]


def filled(path: str, given: dict) -> str:
    values = iter([str(given[kind]) for kind in named(path)])
    return re.sub(r"{[^}]*}", lambda _: next(values), path)


def without_ids(answer, path: str, given: dict) -> str:
    text = answer.body.decode()
    for kind in named(path):
        text = re.sub(rf"\b{re.escape(str(given[kind]))}\b", "ID", text)
    return text


@pytest.fixture(params=["default", "beta"])
async def asking(request, call, engine, token):
    """Who asks: a developer of the first tenant, and an administrator of another with a real token."""
    if request.param == "default":
        return call
    beta = await create_tenant(engine.database, "beta", actor="anna", reason="")
    return call.bearing(await token("admin", tenant_id=beta.tenant_id))


@pytest.fixture(params=["default", "beta"])
async def working(request, call, engine, token):
    """Another tenant's worker: it may use every route of workers, with a real token of its own."""
    tenant_id = 1
    if request.param == "beta":
        tenant_id = (await create_tenant(engine.database, "beta", actor="anna", reason="")).tenant_id
    return call.bearing(await token("worker", tenant_id=tenant_id))


async def test_a_strangers_id_is_answered_like_one_that_is_not_there(asking, engine, acme, theirs):  # noqa: F811
    """All routes on one stage: none of them may change it, so each finds it as the first did."""
    before = await rows_of(engine.database, acme.tenant_id), await rows_of(engine.database, 1)
    # Who rules on an effect names it for their own tenant: there is nothing to be found.
    for endpoint in [one for one in WITH_ID if not one.path.endswith(("/allow", "/deny"))]:
        method, path = endpoint.method, endpoint.path
        body = None if method in ("GET", "DELETE") else {"reason": "because"}
        found, missing = [await asking(method, filled(path, given), body) for given in (theirs, MISSING)]
        assert found.status == missing.status, (method, path, found.body, missing.body)
        assert found.status >= 400 or method == "GET", (method, path, found.body)
        told = without_ids(found, path, theirs)
        assert told == without_ids(missing, path, MISSING), (method, path)
        assert found.headers.keys() == missing.headers.keys() and CANARY not in told, (method, path)
    assert WITH_ID
    assert (await rows_of(engine.database, acme.tenant_id), await rows_of(engine.database, 1)) == before


async def test_no_list_shows_a_stranger(asking, theirs):  # noqa: F811
    lists = [one for one in ENDPOINTS if "{" not in one.path and one.method == "GET"]
    for endpoint in lists:
        if not endpoint.path.endswith("/events"):
            answer = await asking.get(endpoint.path)
            assert CANARY not in answer.body.decode(), (endpoint.path, answer.body)


AS_WORKER = {
    "/internal/task-claim": lambda _: {"limit": 1},
    "/internal/wait": lambda _: {"wait_seconds": 0},
    "/internal/exchange": lambda _: {"limit": 1, "held": []},
    "/internal/heartbeats": lambda lease: {"task_ids": [lease["task_id"]], "lease_tokens": [lease["lease_token"]]},
    "/internal/leave": lambda _: {},
    "/internal/attach": lambda lease: {"task_id": lease["task_id"], "attempt": 1, "launch_token": "x"},
}
"""What workers ask under their own number."""

UNDER_A_LEASE = {
    "/internal/heartbeat": {},
    "/internal/task-complete": {"status": "completed", "outputs": 1},
    "/internal/effects": {"name": "smtp.send", "key": "two", "arguments": {}},
    "/internal/effects/answer": {"idempotency_key": "one", "state": "done", "receipt": 1},
    "/internal/steps": {"name": "count", "arguments": {}, "output": 1},
    "/internal/steps/recall": {},
}
"""What attempts ask under their lease."""

ALONE = {"/internal/terms", "/internal/workers", "/internal/progress", "/internal/openapi.json"}
"""What names nobody, and what is dropped in silence where the lease is not held."""


def test_every_route_of_workers_is_tried():
    routes = {one.path for one in ENDPOINTS if one.access in (Access.WORKER, Access.ATTEMPT)}
    assert routes == AS_WORKER.keys() | UNDER_A_LEASE.keys() | ALONE


def lease_in(given: dict, lease) -> dict:
    return {"task_id": str(given["running"]), "attempt": lease.attempt, "lease_token": str(lease.token)}


async def test_a_strangers_worker_cannot_be_used(working, engine, acme, theirs):  # noqa: F811
    before = await rows_of(engine.database, acme.tenant_id)
    for path, body_of in AS_WORKER.items():
        answers = []
        for given in (theirs, MISSING):
            body = {"worker_id": str(given["worker"]), **body_of(lease_in(given, theirs["lease"]))}
            answer = await working.post(path, body)
            told = re.sub(rf"[Ww]orker '?{given['worker']}'?", "worker ID", answer.body.decode())
            told = told.replace(str(given["running"]), "ID")
            answers.append((answer.status, told))
        assert answers[0] == answers[1] and CANARY not in answers[0][1], (path, answers)
        assert "worker_not_registered" in answers[0][1] or answers[0][0] == 200, (path, answers)
    assert await rows_of(engine.database, acme.tenant_id) == before


async def test_a_strangers_lease_opens_nothing(working, engine, acme, theirs):  # noqa: F811
    before = await rows_of(engine.database, acme.tenant_id)
    for path, more in UNDER_A_LEASE.items():
        answers = []
        for given in (theirs, MISSING):
            answer = await working.post(path, {**lease_in(given, theirs["lease"]), **more})
            answers.append((answer.status, answer.body.decode().replace(str(given["running"]), "ID")))
        assert answers[0] == answers[1] and CANARY not in answers[0][1], (path, answers)
        assert answers[0][0] == 409, (path, answers)
    said = {**lease_in(theirs, theirs["lease"]), "events": [{"kind": "log", "detail": {"message": "not mine"}}]}
    assert (await working.post("/internal/progress", {"notes": [said]})).status == 200
    assert await rows_of(engine.database, acme.tenant_id) == before


async def test_members_of_strangers_are_not_told_and_domains_are_not_claimed(call, engine, acme, theirs, token):  # noqa: F811
    beta = await create_tenant(engine.database, "beta", actor="anna", reason="")
    asked = call.bearing(await token("admin", tenant_id=beta.tenant_id))
    taken = {"issuer": "google", "subject": CANARY, "role": "viewer"}
    answer = await asked.post("/api/v1/members", taken)
    assert (answer.status, answer.json["code"]) == (409, "member_not_added") and b"tenant" not in answer.body
    own = {**taken, "subject": "1001"}
    found = [(await asked.post("/api/v1/members", own)) for _ in range(2)]
    assert [one.status for one in found] == [201, 409] and found[1].json["code"] == "member_exists"
    domain = {"issuer": "google", "domain": "corp.example", "role": "viewer"}
    answer = await asked.post("/api/v1/members", domain)
    assert (answer.status, answer.json["code"]) == (403, "domain_not_yours")
    assert (await call.post("/api/v1/members", domain)).status == 201


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
