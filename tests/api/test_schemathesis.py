"""The OpenAPI document put to the test: requests made up from it, sent to a real server over a real database.

Whatever is asked, the server answers as the document says: with a status and a body it names, never with a mistake of
its own. Bounded: a fixed number of examples, the same ones each time; `make sweep` makes up more.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from tests.cli.doors import a_server
from tests.crash.turns import IS_WHOLE

from holdfast.core.outcome import Failed
from holdfast.core.retry import RetryPolicy
from holdfast.desk.openapi import EVENTS, document
from holdfast.testing import factories as a

schemathesis = pytest.importorskip("schemathesis", reason="pip install schemathesis")

EXAMPLES = 20 if IS_WHOLE else 4
LEFT_OUT = {
    EVENTS: "streams for ever",
    "/api/v1/verify": "reads every table",
    "/api/v1/webhooks": "looks up hosts that a request names",
    "/api/v1/wake/on": "rewrites triggers of the hot table",
}


async def a_scene(dispatcher) -> None:
    """Something of most kinds, so that some requests find what they ask for."""
    engine = dispatcher.engine
    await engine.catalog.declare(engine.tenant_id, a.ACTION, "default", RetryPolicy(), "1")
    await a.a_completed_task(dispatcher)
    await a.a_failed_task(dispatcher)
    lease = await a.a_running_task(dispatcher)
    await dispatcher.settle(lease, Failed(a.a_failure("validation: no such order")))
    await a.a_running_task(dispatcher)


@pytest.fixture
def server_url(holdfast_url):
    from holdfast.dispatcher.engine import Engine
    from holdfast.settings import Settings
    from holdfast.testing.apart import run_apart
    from holdfast.testing.dispatcher import Dispatcher

    async def prepare() -> None:
        async with Engine(holdfast_url, Settings()) as engine:
            await a_scene(Dispatcher(engine))

    run_apart(prepare())
    with a_server(holdfast_url) as url:
        yield url


def test_every_made_up_request_is_answered_as_the_document_says(server_url):
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
    schema = schemathesis.openapi.from_dict(document())
    schema.config.base_url = server_url
    asked = 0
    session = requests.Session()
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path in LEFT_OUT:
            continue
        asked += 1
        _put_to_the_test(operation, session, wanted)
    assert asked > 60


def _put_to_the_test(operation, session, wanted) -> None:
    from hypothesis import given

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
        case.call_and_validate(session=session, headers={"x-dev-user": "anna"}, checks=wanted, timeout=30)

    ask()
