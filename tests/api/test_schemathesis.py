"""The OpenAPI documents put to the test: requests made up from them, sent to a real server over a real database.

Whatever is asked, the server answers as the document says: with a status and a body it names, never with a mistake of
its own. Bounded: a fixed number of examples, the same ones each time; `make sweep` makes up more.
"""

from __future__ import annotations

import inspect
from itertools import count

import pytest
from hypothesis import HealthCheck, Phase, settings
from tests.cli.doors import a_server
from tests.crash.turns import IS_WHOLE

from holdfast.api.described import CALLS, contract
from holdfast.core.outcome import Failed
from holdfast.core.retry import RetryPolicy
from holdfast.desk.openapi import EVENTS, document
from holdfast.testing import factories as a

schemathesis = pytest.importorskip("schemathesis", reason="Schemathesis is not installed: `pip install schemathesis`")

EXAMPLES = 20 if IS_WHOLE else 4
NOWHERE = "https://203.0.113.7/hook"
"""An address that nobody has: no name of a made-up URL is looked up."""


async def a_scene(dispatcher) -> dict:
    """Something of most kinds, so that some requests find what they ask for; answers who works on what."""
    engine = dispatcher.engine
    await engine.catalog.declare(engine.tenant_id, a.ACTION, "default", RetryPolicy(), "1")
    await a.a_completed_task(dispatcher)
    await a.a_failed_task(dispatcher)
    lease = await a.a_running_task(dispatcher)
    await dispatcher.settle(lease, Failed(a.a_failure("validation: no such order")))
    lease = await a.a_running_task(dispatcher)
    worker_id = await engine.database.fetchval(
        "select worker_id from holdfast.live where task_id = $1", int(lease.task_id)
    )
    await dispatcher.enqueue_many(a.a_task(), [{}] * 50)
    token = str(lease.claimed.lease_token)
    return {"worker_id": str(worker_id), "task_id": lease.task_id, "attempt": lease.attempt, "lease_token": token}


@pytest.fixture
def scene(holdfast_url):
    from holdfast.dispatcher.engine import Engine
    from holdfast.settings import Settings
    from holdfast.testing.apart import run_apart
    from holdfast.testing.dispatcher import Dispatcher

    async def prepare() -> dict:
        async with Engine(holdfast_url, Settings()) as engine:
            return await a_scene(Dispatcher(engine))

    return run_apart(prepare())


@pytest.mark.parametrize(
    ("described", "left_out", "asked_min"), [(document, EVENTS, 70), (contract, None, 14)], ids=["operators", "workers"]
)
def test_every_made_up_request_is_answered_as_the_document_says(holdfast_url, scene, described, left_out, asked_min):
    import requests
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    wanted = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
        checks.unsupported_method,
    ]
    schema = schemathesis.openapi.from_dict(described())
    asked = 0
    session = requests.Session()
    with a_server(holdfast_url) as url:
        schema.config.base_url = url
        for result in schema.get_all_operations():
            operation = result.ok()
            if operation.path == left_out:
                continue
            asked += 1
            _put_to_the_test(operation, session, wanted, scene)
    assert asked >= asked_min


def _put_to_the_test(operation, session, wanted, scene) -> None:
    from hypothesis import given

    turns = count()

    @given(case=operation.as_strategy())
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case) -> None:
        (case.query or {}).pop("wait_seconds", None)
        if isinstance(case.body, dict):
            _settle_down(operation.path, case.body, scene if next(turns) % 2 else {})
        case.call_and_validate(session=session, headers={"x-dev-user": "anna"}, checks=wanted, timeout=30)

    ask()


def _settle_down(path, body, scene) -> None:
    """Nothing waits, nothing looks up a host; and every other request of a worker is of one that is there."""
    if path.startswith("/internal/"):
        body["wait_seconds"] = 0
        if path != "/internal/leave":
            body.update({name: value for name, value in scene.items() if name in body})
    elif path == "/api/v1/webhooks" and isinstance(body.get("url"), str):
        body["url"] = NOWHERE


@pytest.mark.parametrize("call", [one for one in CALLS if one.takes], ids=lambda call: call.path)
def test_a_call_takes_what_its_description_says(call):
    assert f"asked.body({call.takes.__name__}" in inspect.getsource(call.handler)
