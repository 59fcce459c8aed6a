"""`holdfast server` as a process: the API and the loops, started and stopped."""

from __future__ import annotations

import json
import signal
import socket
import time
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tests.cli.conftest import invoke

from holdfast.testing.factories import a_delayed_task


def address(process) -> str:
    for line in process.stderr:
        if line.startswith("HTTP API on "):
            return line.removeprefix("HTTP API on ").strip()
    raise AssertionError("the server said no address")


def ask(url, **headers):
    with urlopen(Request(url, headers=headers), timeout=20) as answer:
        return json.load(answer)


def test_the_server_answers_runs_the_loops_and_stops_in_good_order(program, seed):
    task_id = seed(lambda harness: _delayed(harness))
    process = program.start("server", HOLDFAST_ENV="local")
    url = address(process)
    assert ask(f"{url}/readyz") == {"status": "ready"}
    until = time.monotonic() + 30
    while ask(f"{url}/api/v1/tasks/{task_id}", **{"x-dev-user": "anna"})["due_at"] is not None:
        assert time.monotonic() < until, "nobody promoted the task"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


async def _delayed(harness):
    return (await harness.enqueue(a_delayed_task(0.2))).task_id


@pytest.mark.slow("it starts programs; test_the_server_answers_runs_the_loops_and_stops_in_good_order is fast")
def test_in_production_nobody_gets_in_by_a_header(program):
    url = address(program.start("server"))
    with pytest.raises(HTTPError) as refused:
        ask(f"{url}/api/v1/tasks", **{"x-dev-user": "anna"})
    assert refused.value.code == 401


def test_local_on_another_address_refuses_to_start(bare):
    ran = bare("server", "--host", "0.0.0.0", HOLDFAST_ENV="local")
    assert (ran.code, "local_beyond_loopback" in ran.err) == (2, True)


def test_a_taken_port_is_an_error_that_says_so(holdfast_url):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = invoke("server", "--port", str(taken.getsockname()[1]), HOLDFAST_URL=holdfast_url)
    assert (ran.code, "address_unavailable" in ran.err) == (1, True)
