"""Operations over HTTP: requests taken apart strictly, keys that make them once, pages, pace and headers."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.core.flows import a_flow

from holdfast.core.tasks.outcome import Failed
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.operations.registry import OPERATIONS
from holdfast.server.rate_limit import Buckets
from holdfast.settings.settings import HttpSettings, Settings
from holdfast.testing.factories import ACTION, a_failed_task, a_failure, a_running_task, a_task


@pytest.fixture
async def declared(engine):
    """A worker declared `shop.charge`."""
    await engine.catalog.declare(engine.tenant_id, ACTION, "default", RetryPolicy(), "1")


def test_names_and_routes_are_used_once():
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)
    assert len({(operation.method, operation.path) for operation in OPERATIONS}) == len(OPERATIONS)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_an_operation_is_declared_in_full(operation):
    assert operation.method in ("GET", "POST", "DELETE")
    assert operation.summary.endswith(".")
    assert set(operation.path_fields) <= set(operation.request.__struct_fields__)
    assert operation.request.__struct_config__.forbid_unknown_fields
    assert (operation.access == "viewer") <= (operation.method == "GET")
    msgspec.json.schema(operation.answer)


async def test_a_task_is_handed_in_and_carries_the_key_of_its_request(call, declared):
    asked = {"action": ACTION, "input": {"order": 7}, "tags": ["red"], "priority": 2}
    first = await call.post("/api/v1/tasks", asked, idempotency_key="o7")
    assert (first.status, first.json["queue"], first.json["state"]) == (201, "default", "queued")
    again = await call.post("/api/v1/tasks", asked, idempotency_key="o7")
    assert (again.status, again.json) == (201, first.json)
    other = await call.post("/api/v1/tasks", asked | {"input": {"order": 8}}, idempotency_key="o7")
    assert other.status == 409
    shown = (await call.get(f"/api/v1/tasks/{first.json['task_id']}")).json
    assert (shown["key"], shown["input"], shown["tags"], shown["priority"]) == ("o7", {"order": 7}, ["red"], 2)


async def test_a_redrive_under_a_key_is_done_once_and_answered_the_same(call, harness):
    task_id = await a_failed_task(harness)
    path = f"/api/v1/dead/tasks/{task_id}/redrive"
    first = await call.post(path, {"reason": "fixed"}, idempotency_key="again-1")
    assert (first.status, first.json["attempt"]) == (202, 2)
    assert (await call.post(path, {"reason": "fixed"}, idempotency_key="again-1")).json == first.json
    other = await call.post(path, {"reason": "really fixed"}, idempotency_key="again-1")
    assert (other.status, other.json["code"]) == (409, "key_reused")
    without = await call.post(path, {"reason": "fixed"})
    assert (without.status, without.json["code"]) == (409, "execution_not_retryable")


async def test_two_redrives_under_one_key_at_once_are_one(call, harness):
    task_id = await a_failed_task(harness)
    path = f"/api/v1/dead/tasks/{task_id}/redrive"
    asked = [call.post(path, {"reason": "fixed"}, idempotency_key="both") for _ in range(4)]
    answers = await asyncio.gather(*asked)
    assert {answer.status for answer in answers} == {202}
    assert len({answer.body for answer in answers}) == 1
    assert (await harness.task(task_id)).state == "queued"


async def test_a_refused_request_leaves_its_key_free(call, harness):
    task_id = (await harness.enqueue(a_task(max_retries=0))).task_id
    path = f"/api/v1/dead/tasks/{task_id}/redrive"
    assert (await call.post(path, {"reason": "fixed"}, idempotency_key="k")).status == 409
    await harness.settle(await harness.claim_one(), Failed(a_failure()))
    assert (await call.post(path, {"reason": "fixed"}, idempotency_key="k")).status == 202


async def test_a_group_and_a_campaign_are_asked_for_once(call, harness):
    for _ in range(3):
        await a_failed_task(harness)
    [group] = (await call.get("/api/v1/dead/groups")).json["groups"]
    campaign = {"fingerprint": group["fingerprint"], "reason": "fixed", "canary": 1}
    started = [(await call.post("/api/v1/campaigns", campaign, idempotency_key="c")) for _ in range(2)]
    assert [one.status for one in started] == [201, 201] and started[0].json == started[1].json
    aborted = await call.post(f"/api/v1/campaigns/{started[0].json['campaign_id']}/abort", {"reason": "no"})
    assert aborted.json["state"] == "aborted"
    path = f"/api/v1/dead/groups/{group['fingerprint']}/redrive"
    asked = [(await call.post(path, {"reason": "fixed"}, idempotency_key="g")).json for _ in range(2)]
    assert asked[0] == asked[1] and asked[0]["letters"] == 3


async def test_keys_are_forgotten_after_a_day(call, harness, engine, clock):
    from holdfast.engine.maintenance.retention import retain_once

    task_id = await a_failed_task(harness)
    path = f"/api/v1/dead/tasks/{task_id}/redrive"
    await call.post(path, {"reason": "fixed"}, idempotency_key="k")
    await retain_once(engine.database, days=30)
    assert await engine.database.fetchval("select count(*) from holdfast.request_key") == 1
    await clock.advance("25h")
    await retain_once(engine.database, days=30)
    assert await engine.database.fetchval("select count(*) from holdfast.request_key") == 0


async def test_a_request_that_is_not_as_declared_is_refused(call, harness, subtests):
    cases = [
        ("POST", "/api/v1/tasks", {"action": ACTION, "state": "completed"}, "invalid_body"),
        ("POST", "/api/v1/tasks", {"action": 7}, "invalid_body"),
        ("POST", "/api/v1/tasks", {}, "invalid_body"),
        ("POST", "/api/v1/tasks?action=x", {"action": ACTION}, "invalid_query"),
        ("POST", "/api/v1/tasks/7/cancel", {"task_id": "8"}, "invalid_body"),
        ("POST", "/api/v1/tasks/7/cancel", {"reason": "a\x00b"}, "invalid_text"),
        ("GET", "/api/v1/tasks?limit=1&limit=2", None, "invalid_query"),
        ("GET", "/api/v1/tasks?tag=%00", None, "invalid_text"),
        ("GET", "/api/v1/queues?after=nothing", None, "invalid_cursor"),
        ("GET", "/api/v1/workers?before=2:x", None, "invalid_cursor"),
        ("GET", "/api/v1/tasks/7/logs?after=x", None, "invalid_cursor"),
        ("GET", "/api/v1/audit?before=99999999999999999999", None, "invalid_value"),
    ]
    for method, path, body, code in cases:
        with subtests.test(method=method, path=path, body=body, code=code):
            if "/7/logs" in path:
                path = path.replace("/7/", f"/{(await harness.enqueue(a_task())).task_id}/")
            answer = await call(method, path, body)
            assert (answer.status, answer.json["code"]) == (400, code)


async def test_a_key_where_nothing_is_created_is_refused(call, harness):
    task = await harness.enqueue(a_task())
    answer = await call.post(f"/api/v1/tasks/{task.task_id}/cancel", idempotency_key="k")
    assert (answer.status, answer.json["code"]) == (400, "key_not_taken")


async def test_many_tasks_are_handed_in_at_once_and_once_under_a_key(call, harness, engine):
    await engine.catalog.declare(1, ACTION, "default", RetryPolicy(), "")
    batch = {"action": ACTION, "inputs": [{"n": n} for n in range(2_500)], "queue": "bulk", "tags": ["night"]}
    first, again = [await call.post("/api/v1/tasks/batch", batch, idempotency_key="b") for _ in range(2)]
    assert (first.status, again.status) == (201, 201) and first.json == again.json
    assert len(set(first.json["task_ids"])) == 2_500 and first.json["queue"] == "bulk"
    assert await engine.database.fetchval("select count(*) from holdfast.live") == 2_500
    view = await harness.task(first.json["task_ids"][7])
    assert (view.queue, view.tags) == ("bulk", ["night"])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"inputs": []}, "invalid_batch"),
        ({"inputs": [{}] * 10_001}, "invalid_batch"),
        ({"inputs": [{"n": 1}, {"n": "x" * 4_000_000}]}, "payload_too_large"),
        ({"action": "no.such"}, "action_not_found"),
        ({"priority": 11}, "invalid_priority"),
    ],
    ids=["none", "too many", "one too large", "unknown", "priority"],
)
async def test_of_many_tasks_all_are_refused_or_none(call, engine, change, code):
    await engine.catalog.declare(1, ACTION, "default", RetryPolicy(), "")
    answer = await call.post("/api/v1/tasks/batch", {"action": ACTION, "inputs": [{"n": 1}], **change})
    assert answer.status >= 400 and answer.json["code"] == code, answer.body
    assert await engine.database.fetchval("select count(*) from holdfast.live") == 0


async def test_a_retry_under_a_key_is_done_once_and_answered_the_same(call, harness):
    lease = await a_running_task(harness)
    await harness.settle(lease, Failed(a_failure("validation: no such order")))
    run_id = await harness.runs.start(a_flow("a>b"))
    await harness.settle(await harness.claim_one(), Failed(a_failure()))
    for path in (f"/api/v1/tasks/{lease.task_id}/retry", f"/api/v1/runs/{run_id}/retry"):
        first = await call.post(path, {"reason": "fixed"}, idempotency_key=path)
        again = await call.post(path, {"reason": "fixed"}, idempotency_key=path)
        assert (first.status, again.status, again.json) == (202, 202, first.json)
        other = await call.post(path, {"reason": "really"}, idempotency_key=path)
        assert (other.status, other.json["code"]) == (409, "key_reused")
        assert (await call.post(path, {"reason": "fixed"})).status == 409, "without a key it is another retry"


async def test_a_schedule_is_fired_once_under_a_key(call, harness, engine):
    await harness.schedules.keep("hourly")
    path = "/api/v1/schedules/hourly/fire"
    fired = [await call.post(path, {"reason": "now"}, idempotency_key="f") for _ in range(2)]
    assert [one.status for one in fired] == [202, 202] and fired[0].json == fired[1].json
    assert await engine.database.fetchval("select count(*) from holdfast.slot") == 1
    assert (await call.post(path, {"reason": "other"}, idempotency_key="f")).json["code"] == "key_reused"


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/api/v1/tokens", {"name": "ci", "role": "viewer"}, "make another"),
        ("/api/v1/webhooks", {"name": "hook", "url": "https://8.8.8.8/"}, "rotate it"),
        ("/api/v1/webhooks/hook/rotate", {}, "rotate once more"),
    ],
)
async def test_who_is_told_a_secret_learns_what_a_lost_answer_means(call, path, body, says):
    answer = await call.post(path, body, idempotency_key="k")
    assert (answer.status, answer.json["code"]) == (400, "key_not_taken") and says in answer.json["advice"]


async def test_pages_of_every_kind_of_list_follow_one_another(call, harness, engine):
    for number in range(3):
        await a_failed_task(harness, queue=f"q{number}", worker=f"w{number}")
        await call.post(f"/api/v1/effects/e{number}/allow", {"reason": "may"})
        await engine.catalog.declare(engine.tenant_id, f"shop.a{number}", "default", RetryPolicy(), "1")
    lists = {
        "/api/v1/tasks": ("tasks", "task_id", "before"),
        "/api/v1/queues": ("queues", "name", "after"),
        "/api/v1/workers": ("workers", "worker_id", "before"),
        "/api/v1/actions": ("actions", "name", "after"),
        "/api/v1/dead/letters": ("letters", "dead_letter_id", "before"),
        "/api/v1/effects/rules": ("rules", "effect", "after"),
        "/api/v1/audit": ("rows", "seq", "before"),
    }
    for path, (rows, key, cursor) in lists.items():
        whole = [row[key] for row in (await call.get(path)).json[rows]]
        seen, following = [], ""
        while following is not None:
            page = (await call.get(f"{path}?limit=2{f'&{cursor}={following}' if following else ''}")).json
            assert len(page[rows]) <= 2
            seen += [row[key] for row in page[rows]]
            following = page["next"]
        assert (len(whole) >= 3, seen) == (True, whole), path


MANY_TOKENS = """
    insert into holdfast.token (token_id, tenant_id, name, role, digest, created_by)
    select lpad(n::text, 12, '0'), 1, 'ci-' || n, 'viewer', sha256(n::text::bytea), 'ada'
    from generate_series(1, 2100) n
"""
MANY_MEMBERS = """
    insert into holdfast.member (tenant_id, issuer, subject, role, name, added_by)
    select 1, 'https://id.example', 's' || n, 'viewer', '', 'ada' from generate_series(1, 2100) n
"""


@pytest.mark.parametrize(
    ("made", "path", "rows", "key"),
    [
        (MANY_TOKENS, "/api/v1/tokens", "tokens", "token_id"),
        (MANY_MEMBERS, "/api/v1/members", "members", "member_id"),
    ],
)
async def test_more_than_a_thousand_tokens_and_members_are_all_listed(call, engine, made, path, rows, key):
    await engine.database.fetch(made)
    seen, following = [], ""
    while following is not None:
        page = (await call.get(f"{path}{f'?after={following}' if following else ''}")).json
        seen += [row[key] for row in page[rows]]
        following = page["next"]
    assert (len(seen), len(set(seen))) == (2100, 2100)


AN_EFFECT = """
    insert into holdfast.effect (tenant_id, key, task_id, attempt, ordinal, generation, lease_token, name, digest)
    values (1, $1, $2, 1, $3, 1, gen_random_uuid(), 'smtp.send', '')
"""


@pytest.mark.breaks_invariants
@pytest.mark.parametrize("state", ["", "&state=unknown"])
async def test_pages_of_effects_may_end_inside_a_task(call, engine, state):
    for number in range(6):
        await engine.database.fetch(AN_EFFECT, f"key-{number}", number // 3, number)
    seen, following = [], ""
    while following is not None:
        after = f"&after={following}" if following else ""
        page = (await call.get(f"/api/v1/effects?limit=2{state}{after}")).json
        seen += [row["idempotency_key"] for row in page["effects"]]
        following = page["next"]
    assert seen == ["key-3", "key-4", "key-5", "key-0", "key-1", "key-2"]


async def test_every_answer_carries_the_safe_headers_and_none_for_other_sites(call):
    for path in ("/healthz", "/api/v1/tasks", "/api/v1/tasks/999", "/nowhere", "/api/openapi.json"):
        answer = await call.get(path, origin="https://elsewhere.example")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert answer.headers["cache-control"] == "no-store"
        assert not [name for name in answer.headers if name.startswith("access-control")]


class TestPace:
    @pytest.fixture
    def holdfast_settings(self):
        slow = HttpSettings(caller_requests_per_second=0.1, caller_requests_burst=3)
        return Settings(env="local", port=0, http=slow)

    async def test_a_caller_who_asks_too_often_is_told_when_to_come_back(self, call):
        answers = [await call.get("/api/v1/tasks") for _ in range(4)]
        assert [answer.status for answer in answers] == [200, 200, 200, 429]
        assert (answers[3].json["code"], int(answers[3].headers["retry-after"]) >= 1) == ("too_many_requests", True)
        assert (await call.get("/api/v1/tasks", x_dev_user="bert")).status == 200

    async def test_workers_are_not_counted(self, call):
        asked = {"actions": [ACTION]}
        assert {(await call.post("/internal/workers", asked)).status for _ in range(6)} == {200}


class TestPeers:
    @pytest.fixture
    def holdfast_settings(self):
        return Settings(env="local", port=0, http=HttpSettings(peer_requests_per_second=0.1, peer_requests_burst=2))

    async def test_an_address_is_limited_before_anybody_is_known_and_shuts_out_nobody_who_is(self, call):
        answers = [await call.get("/api/v1/tasks", x_dev_user=None) for _ in range(3)]
        assert [answer.status for answer in answers] == [401, 401, 429]
        assert {(await call.get("/api/v1/tasks")).status for _ in range(4)} == {200}

    async def test_whoever_watches_the_server_is_not_counted(self, call):
        for path in ("/healthz", "/readyz"):
            assert {(await call.get(path, x_dev_user=None)).status for _ in range(5)} == {200}


class TestStreams:
    @pytest.fixture
    def holdfast_settings(self):
        return Settings(env="local", port=0, http=HttpSettings(caller_streams_max=2, tenant_streams_max=3))

    def opened(self, call, name):
        connection = call.open()
        connection.request("GET", "/api/v1/events", headers={"x-dev-user": name})
        response = connection.getresponse()
        response.readline()
        return connection, response

    async def test_a_caller_and_a_tenant_have_so_many_open_and_no_more(self, call, worker, eventually):
        held = [await asyncio.to_thread(self.opened, call, name) for name in ("anna", "anna", "bert")]
        try:
            assert [response.status for _, response in held] == [200] * 3
            for name in ("anna", "carl"):
                answer = await call.get("/api/v1/events", x_dev_user=name)
                assert (answer.status, answer.json["code"]) == (429, "too_many_streams")
            waits = {"worker_id": worker, "limit": 1, "wait_seconds": 20}
            assert (await call.post("/internal/task-claim", waits)).status == 429
            assert (await call.post("/internal/task-claim", {**waits, "wait_seconds": 0})).status == 200
        finally:
            for connection, response in held:
                response.close()
                connection.close()

        async def is_free():
            connection, response = await asyncio.to_thread(self.opened, call, "anna")
            response.close()
            connection.close()
            return response.status == 200

        await eventually(is_free)


def test_a_bucket_fills_up_with_time_and_the_quietest_key_is_forgotten():
    now = [0.0]
    buckets = Buckets(2.0, 4, keys_max=2, clock=lambda: now[0])
    assert [buckets.wait_seconds("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]
    now[0] = 1.0
    assert [buckets.wait_seconds("a") for _ in range(3)] == [0, 0, 0.5]
    for key in ("b", "c"):
        buckets.wait_seconds(key)
    assert (len(buckets), buckets.wait_seconds("a")) == (2, 0)
