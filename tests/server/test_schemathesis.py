"""The OpenAPI documents put to the test: requests made up from them, sent to a real server over a real database.

Whatever is asked, the server answers as the document says: with a status and a body it names, never with a mistake of
its own. Every other request is about something that is there, and one of each operation succeeds: what is refused at
the door, or not found, tries nothing behind it. Bounded: a fixed number of examples, the same ones each time; `make
sweep` makes up more.
"""

from __future__ import annotations

import inspect
from itertools import count

import pytest
from hypothesis import HealthCheck, Phase, settings
from tests.cli.doors import a_server
from tests.server.scene import NOWHERE, SOMEWHERE, a_scene, body_about, held_in, made_for, path_about
from tests.stories import playing_on

from holdfast.operations.openapi import EVENTS, document
from holdfast.server.worker_api.openapi import CALLS, contract
from holdfast.testing.engine_harness import EngineHarness

schemathesis = pytest.importorskip("schemathesis", reason="Schemathesis is not installed: `pip install schemathesis`")

MANY = pytest.param(20, marks=pytest.mark.slow("the same examples and more of them; four of each operation are fast"))
IN_VAIN = {
    "POST /api/v1/webhooks/{name}/test": "it would send to where the webhook points; tests/engine has a receiver",
}
"""Operations that are not asked about what is there, and why."""


@pytest.fixture
def stage(holdfast_url):
    """A scene to ask about, and a way to make more of it: `stage(label)` is what a request may be about."""
    with playing_on(holdfast_url) as play:
        kept = {}

        async def begin(engine):
            kept["harness"] = EngineHarness(engine)
            kept["scene"] = await a_scene(kept["harness"])

        async def go_on(label):
            kept["made"] = await made_for(kept["harness"], label, kept["scene"])

        def made(label):
            play(lambda _: go_on(label))
            return kept["made"]

        play(begin)
        yield made


@pytest.mark.timeout(600)
# The server is a thread of this process, and draws pauses by lot while requests are made up.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
@pytest.mark.parametrize("examples", [4, MANY])
@pytest.mark.parametrize(
    ("described", "left_out", "asked_min"), [(document, EVENTS, 70), (contract, None, 14)], ids=["operators", "workers"]
)
def test_every_made_up_request_is_answered_as_the_document_says(
    holdfast_url, stage, described, left_out, asked_min, examples
):
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
    answers = {}
    session = requests.Session()
    with a_server(holdfast_url) as url:
        schema.config.base_url = url
        for operation in sorted((one.ok() for one in schema.get_all_operations()), key=takes_away):
            if operation.path != left_out:
                answers[operation.label] = _put_to_the_test(operation, session, wanted, stage, examples)
    assert len(answers) >= asked_min
    assert not {401, 429} & {status for statuses in answers.values() for status in statuses}, "the door was in the way"
    vain = {label for label, statuses in answers.items() if not any(200 <= one < 300 for one in statuses)}
    assert vain == IN_VAIN.keys() & answers.keys()


def takes_away(operation) -> bool:
    """Asked for last: what others ask about is gone then."""
    return operation.method.upper() == "DELETE" or operation.path.endswith(("/delete", "/revoke", "/remove", "/drop"))


def _put_to_the_test(operation, session, wanted, stage, examples) -> list[int]:
    """Ask, in turn, what should succeed, something made up, and something made up about what is there."""
    from hypothesis import given

    turns = count()
    statuses = []

    @given(case=operation.as_strategy())
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case) -> None:
        turn = next(turns)
        if turn % 2 == 0 and operation.label not in IN_VAIN:
            scene = stage(operation.label)
            if not operation.path.startswith("/internal/"):
                case.path_parameters = path_about(operation.path, scene)
            if turn == 0:
                case.query, case.headers = {}, {}
                if operation.method.upper() == "POST":
                    case.body = body_about(operation.path, scene)
            elif isinstance(case.body, dict) and operation.path.startswith("/internal/"):
                case.body.update(held_in(case.body, scene))
        # A made-up credential gets nobody past the door; tests of the door try many.
        case.headers = {name: value for name, value in (case.headers or {}).items() if name.lower() != "authorization"}
        (case.query or {}).pop("wait_seconds", None)
        if isinstance(case.body, dict):
            _settle_down(operation.path, case.body)
        answer = case.call_and_validate(session=session, headers={"x-dev-user": "anna"}, checks=wanted, timeout=30)
        statuses.append(answer.status_code)

    ask()
    return statuses


def _settle_down(path, body) -> None:
    """Nothing waits, and nothing looks up a host."""
    if path.startswith("/internal/"):
        body["wait_seconds"] = 0
    elif path == "/api/v1/webhooks" and isinstance(body.get("url"), str) and body["url"] != SOMEWHERE:
        body["url"] = NOWHERE


@pytest.mark.parametrize("call", [one for one in CALLS if one.takes], ids=lambda call: call.path)
def test_a_call_takes_what_its_description_says(call):
    assert f"request.body({call.takes.__name__}" in inspect.getsource(call.handler)
