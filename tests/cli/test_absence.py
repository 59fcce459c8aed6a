"""Following something while the database, or the server, is away: told once, and nothing is lost or repeated."""

from __future__ import annotations

from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from tests.cli.conftest import Program
from tests.cli.doors import a_server
from tests.core.flows import a_flow
from tests.flow.steps import finish, step
from tests.own_server import OwnServer

from holdfast.core.tasks.outcome import Completed
from holdfast.engine.engine import Engine
from holdfast.settings.settings import Settings
from holdfast.testing import factories as a
from holdfast.testing.databases import remove_home, throw_away_home
from holdfast.testing.run_coroutine import run_coroutine

pytestmark = [pytest.mark.crash, pytest.mark.xdist_group("own_server")]

DOORS = ("the database", "a server over it", "a server that stops")
AWAY, BACK = "Waiting for it to come back.", "It is back; going on."


class Place:
    """A database and a way to it, one of which goes away and comes back."""

    def __init__(self, door: str) -> None:
        self._home = throw_away_home()
        self.database = OwnServer(self._home)
        self._door = door
        self._serving = ExitStack()
        self.url = self.database.url

    def open(self) -> None:
        run_coroutine(migrated(self.database.url))
        if self._door != "the database":
            self.url = self._serving.enter_context(a_server(self.database.url))

    def leave(self) -> None:
        if self._door == "a server that stops":
            self._serving.close()
        else:
            self.database.crash()

    def come_back(self) -> None:
        if self._door == "a server that stops":
            port = urlsplit(self.url).port
            assert port is not None
            self._serving.enter_context(a_server(self.database.url, port))
        else:
            self.database.recover()

    def close(self) -> None:
        self._serving.close()
        self.database.close()
        remove_home(self._home)


async def migrated(url: str) -> None:
    async with Engine(url, Settings(), migrates=True):
        pass


@pytest.fixture(params=DOORS)
def place(request):
    made = Place(request.param)
    try:
        made.open()
        yield made
    finally:
        made.close()


@pytest.fixture
def holdfast_url(place):
    return place.database.url


@pytest.fixture
def program(place):
    made = Program(place.url)
    yield made
    made.close()


def said(pipe, word):
    """The line that has this word, and those before it."""
    lines = []
    while not lines or word not in lines[-1]:
        lines.append(pipe.readline())
        assert lines[-1], f"{word!r} was not said: {lines}"
    return lines


async def a_run(harness):
    run = await harness.runs.start(a_flow("a>b"))
    await step(harness)
    return run


async def the_rest_of_it(harness):
    await harness.runs.snapshot(a_flow("a>b"))
    await finish(harness)


@pytest.mark.representative(one_in=2)
def test_a_watched_run_goes_on_where_it_was(place, program, seed):
    run = seed(a_run)
    watching = program.start("run", "watch", run, HOLDFAST_ENV="local")
    lines = said(watching.stdout, "task.queued\tb")
    place.leave()
    absence = said(watching.stderr, AWAY)
    place.come_back()
    seed(the_rest_of_it)
    out, err = watching.communicate(timeout=30)
    assert (watching.returncode, err.count(BACK), "".join([*absence, err]).count(AWAY)) == (0, 1, 1)
    again = program.run("run", "watch", run, HOLDFAST_ENV="local")
    assert "".join(lines) + out == again.out and again.code == 0


@pytest.mark.representative(one_in=2)
def test_a_watched_task_goes_on_where_it_was(place, program, seed):
    lease = seed(a.a_running_task)
    watching = program.start("task", "watch", lease.task_id, HOLDFAST_ENV="local")
    said(watching.stderr, "attempt 1 on first")
    place.leave()
    said(watching.stderr, AWAY)
    place.come_back()
    seed(lambda harness: harness.settle(lease, Completed(b"7")))
    out, err = watching.communicate(timeout=30)
    assert (watching.returncode, out, err.count(BACK)) == (0, "7\n", 1)


@pytest.mark.parametrize("place", ["the database"], indirect=True)
def test_an_absence_is_waited_for_no_longer_than_asked(place, program, seed):
    lease = seed(a.a_running_task)
    watching = program.start("task", "watch", lease.task_id, "--timeout", "3s", HOLDFAST_ENV="local")
    said(watching.stderr, "attempt 1 on first")
    place.leave()
    _out, err = watching.communicate(timeout=30)
    place.come_back()
    assert (watching.returncode, err.count(AWAY)) == (6, 1)
