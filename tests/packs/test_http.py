"""Requests as actions: where they may go, what an answer means, and when to come again."""

from __future__ import annotations

import pytest

from holdfast.authoring.packs.http_runtime import UnsafeSegment, rendered_url
from holdfast.errors import TaskFailed

SEND = """
    runtime: http
    method: POST
    url: {url}/orders/${{id}}
    headers: {{X-Name: "${{name}}"}}
    query: {{q: "${{name}}"}}
    body: {{order: "${{id}}", text: "for ${{name}}"}}
    parameters: {{id: any, name: {{type: string, default: Ada}}}}
"""


async def last_failure(client):
    return await client.engine.database.fetchrow(
        "select code, class, decision, message, extract(epoch from retry_at - ended_at) as delay"
        " from holdfast.failure order by ended_at desc limit 1"
    )


async def test_a_request_is_filled_in_and_its_answer_is_the_output(working, web):
    web.answers["/orders/7"] = (200, {"content-type": "application/json"}, '{"ok": true}')
    async with working({"send": SEND.format(url=web.url)}) as client:
        task = await client.enqueue("mypack.send", id=7)
        output = await task.result(30)
    assert (output["status"], output["body"]) == (200, {"ok": True})
    (request,) = web.seen
    assert request.startswith("POST /orders/7?q=Ada HTTP/1.1")
    assert '{"order":7,"text":"for Ada"}' in request and f"idempotency-key: {task.task_id}" in request.lower()


async def test_an_input_cannot_leave_its_place(working, web):
    async with working({"send": SEND.format(url=web.url)}) as client:
        task = await client.enqueue("mypack.send", id="../../admin?x=1#", name="a\r\nX-Evil: 1")
        assert await task.wait(30) == "failed"
    (request,) = web.seen
    assert request.startswith("POST /orders/..%2F..%2Fadmin%3Fx%3D1%23?q=")
    assert "\r\nX-Evil" not in request and "x-name: ax-evil: 1" in request.lower()


STATUSES = {
    429: ("rate_limited", "retry"),
    408: ("execution_timeout", "retry"),
    500: ("transient_error", "retry"),
    503: ("transient_error", "retry"),
    400: ("invalid_parameters", "stop"),
    403: ("permission_denied", "stop"),
    404: ("invalid_parameters", "stop"),
    501: ("transient_error", "retry"),
    302: ("unclassified", "stop"),
}


async def test_the_status_says_whether_to_try_again(working, web):
    first = "select code, class, decision from holdfast.failure where attempt = 1"
    for status in STATUSES:
        web.answers[f"/orders/{status}"] = (status, {"location": f"{web.url}/elsewhere"}, "no")
    async with working({"send": f"{SEND.format(url=web.url)}    max_retries: 1\n"}) as client:
        for status in STATUSES:
            await client.enqueue("mypack.send", id=status)
        rows = []
        while len(rows) < len(STATUSES):
            rows = await client.engine.database.fetch(first)
    found = {row["code"]: (row["class"], row["decision"]) for row in rows}
    assert found == {f"http_{status}": known for status, known in STATUSES.items()}
    assert not [request for request in web.seen if "/elsewhere" in request], "a redirect is not followed"


@pytest.mark.parametrize("asked", ["90", "Wed, 21 Oct 2026 07:29:30 GMT"])
async def test_retry_after_is_honoured(working, web, asked):
    web.answers["/orders/1"] = (503, {"retry-after": asked, "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, "later")
    async with working({"send": f"{SEND.format(url=web.url)}    max_retries: 1\n"}) as client:
        await client.enqueue("mypack.send", id=1)
        row = None
        while row is None:
            row = await last_failure(client)
    assert float(row["delay"]) == pytest.approx(90.0)


async def test_a_server_that_does_not_answer_is_given_up(working, web):
    hang = f"runtime: http\nurl: {web.url}/hang\ntimeout_seconds: 0.3"
    async with working({"hang": hang}) as client:
        with pytest.raises(TaskFailed):
            await (await client.enqueue("mypack.hang")).result(30)
        row = await last_failure(client)
    assert row["class"] == "execution_timeout"


async def test_nobody_there_is_a_connection_error(working):
    async with working({"call": "runtime: http\nurl: http://127.0.0.1:1/"}) as client:
        with pytest.raises(TaskFailed):
            await (await client.enqueue("mypack.call")).result(30)
        row = await last_failure(client)
    assert row["class"] == "connection_error"


@pytest.mark.parametrize("order", ["..", ".", ""])
async def test_an_input_cannot_climb_out_of_its_path(working, web, order):
    """`DELETE /accounts/7/orders/..` would delete the account."""
    send = f"runtime: http\nmethod: DELETE\nurl: {web.url}/accounts/${{user}}/orders/${{order}}"
    parameters = "parameters: {user: {type: string}, order: {type: string}}"
    async with working({"remove": f"{send}\n{parameters}"}) as client:
        task = await client.enqueue("mypack.remove", user="7", order=order)
        with pytest.raises(TaskFailed):
            await task.result(30)
        row = await last_failure(client)
    assert (row["class"], web.seen) == ("invalid_parameters", [])


@pytest.mark.parametrize(
    ("template", "values", "expected"),
    [
        ("https://api.test/a/${x}", {"x": "b/../c"}, "https://api.test/a/b%2F..%2Fc"),
        ("https://api.test/a/${x}", {"x": "%2e%2e"}, "https://api.test/a/%252e%252e"),
        ("https://api.test/a/v${x}?q=${x}", {"x": ".."}, "https://api.test/a/v..?q=.."),
    ],
)
def test_a_url_keeps_its_segments(template, values, expected):
    assert rendered_url(template, values) == expected


@pytest.mark.parametrize("parts", [(".", "."), ("", "..")])
def test_two_inputs_cannot_climb_together(parts):
    with pytest.raises(UnsafeSegment):
        rendered_url("https://api.test/a/${x}${y}/b", dict(zip("xy", parts, strict=True)))
