"""Over HTTP, too, what belongs to another tenant does not exist: the same answer as for what never did."""

from __future__ import annotations

import re

import pytest
from tests.server.routes import AS_WORKER, IN_BODIES, IN_QUERIES, UNDER_A_LEASE, WITH_ID, body_for, filled, kinds_of
from tests.tenants.acme import CANARY, MISSING, acme, at_acme, rows_of, theirs  # noqa: F401 - fixtures

from holdfast.engine.identity.tenants import create_tenant, limit_tenant
from holdfast.operations.registry import OPERATIONS
from holdfast.server.app import ENDPOINTS
from holdfast.server.auth.caller import Access
from holdfast.store.tenancy import TENANT_ROLE
from holdfast.testing import factories as a

RULED = ("/allow", "/deny", "/queues/{name}/limit")
"""Who rules on an effect or limits a queue names it for their own tenant: there is nothing to be found."""
TELLING = {"action", "clone", "fingerprint", "flow", "idempotency_key", "run_id", "task_id"}
"""Fields of bodies that name what is there already."""
LAST = ("delete", "revoke", "remove", "drop")
"""What the owner asks for last, because nothing is there any more after it."""


def without_ids(answer, values) -> str:
    text = answer.body.decode()
    for value in values:
        text = re.sub(rf"\b{re.escape(str(value))}\b", "ID", text)
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


def about(given: dict):
    """What every route that is told an id is asked about something: method, path, body, and the ids in them."""
    for endpoint in WITH_ID:
        if not endpoint.path.endswith(RULED):
            method, path = endpoint.method, endpoint.path
            yield method, filled(path, given), body_for(method, path), [given[one] for one in kinds_of(path).values()]
    for path, body_of in IN_BODIES:
        yield "POST", path, body_of(given), [next(iter(body_of(given).values()))]


def test_every_body_that_names_something_is_tried():
    tried = {(path, next(iter(body_of(MISSING)))) for path, body_of in IN_BODIES}
    posts = [one for one in OPERATIONS if one.method == "POST" and not one.path.endswith(RULED)]
    assert tried == {(one.path, field) for one in posts for field in one.other_fields if field in TELLING}


@pytest.mark.representative(one_in=2)
async def test_a_strangers_id_is_answered_like_one_that_is_not_there(asking, engine, acme, theirs):  # noqa: F811
    """All routes on one stage: none of them may change it, so each finds it as the first did."""
    before = await rows_of(engine.database, acme.tenant_id), await rows_of(engine.database, 1)
    asked = 0
    for (method, path, body, ids), (_, nowhere, other, no_ids) in zip(about(theirs), about(MISSING), strict=True):
        found, missing = await asking(method, path, body), await asking(method, nowhere, other)
        assert (found.status, missing.status) == (404, 404), (method, path, found.body, missing.body)
        told = without_ids(found, ids)
        assert told == without_ids(missing, no_ids), (method, path)
        assert found.headers.keys() == missing.headers.keys() and CANARY not in told, (method, path)
        asked += 1
    assert asked > 60
    assert (await rows_of(engine.database, acme.tenant_id), await rows_of(engine.database, 1)) == before


async def test_what_a_stranger_does_not_find_its_owner_finds(call, token, at_acme, theirs):  # noqa: F811
    """The same requests: it was the tenant that they failed for, not what they said."""
    owner = call.bearing(await token("admin", tenant_id=at_acme.engine.tenant_id))
    requests = sorted(
        about(theirs), key=lambda one: (one[0] == "DELETE" or one[1].endswith(LAST), "/dead/" not in one[1])
    )
    done = 0
    for method, path, body, _ in requests:
        if "/dead/groups/" in path and not path.endswith("/delete"):
            # Each finds a failure, whatever the one before did with the last.
            await a.a_failed_task(at_acme, queue=CANARY)
        if path.endswith("/test"):
            continue  # it would send to where the webhook points
        answer = await owner(method, path, body)
        assert answer.status in (200, 201, 202, 409), (method, path, answer.status, answer.body)
        done += answer.status != 409
    assert done > 0.7 * len(requests)


async def test_no_list_shows_a_stranger(asking, theirs):  # noqa: F811
    lists = [one for one in ENDPOINTS if "{" not in one.path and one.method == "GET"]
    for endpoint in lists:
        if not endpoint.path.endswith("/events"):
            answer = await asking.get(endpoint.path)
            assert CANARY not in answer.body.decode(), (endpoint.path, answer.body)


async def test_a_list_that_is_asked_for_what_a_stranger_has_is_empty(call, asking, token, at_acme, theirs):  # noqa: F811
    owner = call.bearing(await token("admin", tenant_id=at_acme.engine.tenant_id, name="owner"))
    for path, queries in IN_QUERIES.items():
        for field, _, kind in (query.partition("=") for query in queries):
            found, missing = [await asking.get(f"{path}?{field}={given[kind]}") for given in (theirs, MISSING)]
            own = await owner.get(f"{path}?{field}={theirs[kind]}")
            assert (found.status, found.body) == (200, missing.body), (path, field, found.body)
            assert own.status == 200 and own.body != found.body, (path, field, own.body)


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


async def test_a_tenant_that_a_request_names_decides_nothing(call, theirs, subtests):  # noqa: F811
    for where in ["query", "header", "body"]:
        with subtests.test(where=where):
            path, headers = f"/api/v1/tasks/{theirs['task']}", {}
            if where == "query":
                assert (await call.get(f"{path}?tenant_id=2&tenant=acme")).status in (400, 404)
            elif where == "header":
                headers = {"x_tenant_id": "2", "x_tenant": "acme", "holdfast_tenant": "acme"}
                assert (await call.get(path, **headers)).status == 404
            else:
                body = {"reason": "r", "tenant_id": 2, "tenant": "acme"}
                assert (await call.post(f"{path}/cancel", body)).status in (400, 404, 422)


async def test_what_a_request_does_is_done_behind_the_wall(call, harness, engine, worker):
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
    await harness.enqueue(a.a_task())
    await call.post("/internal/task-claim", {"worker_id": worker, "limit": 5})
    assert {row["who"] for row in await engine.database.fetch("select who from public.seen")} == {TENANT_ROLE}


async def test_a_full_tenant_is_told_to_come_back(call, engine):
    from holdfast.errors import Unavailable
    from holdfast.server.problems import problem

    await limit_tenant(engine.database, "default", max_running=None, max_queued=1, actor="anna", reason="")
    await engine.catalog.allowance.require(1, 1)
    with pytest.raises(Unavailable) as raised:
        await engine.catalog.allowance.require(1, 2)
    answer = problem(raised.value)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
