"""The real command against a database of the test's own: in this process for most tests, as a program for the rest."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.cli.doors import a_server
from tests.waiting import waits

import holdfast as package
from holdfast.cli.main import cli
from holdfast.engine.engine import Engine
from holdfast.settings.settings import Settings
from holdfast.testing.engine_harness import EngineHarness
from holdfast.testing.run_coroutine import run_coroutine

SHOP = """
import asyncio
import holdfast as hf

app = hf.App("shop", version="1.4.2")

@app.action(queue="math", max_retries=1, retry={"base_backoff_secs": 0.05})
async def double(x: int) -> int:
    return 2 * x

@app.action(queue="math", max_retries=0)
async def fail(why: str = "no luck") -> None:
    raise ConnectionError(why)

@app.action(queue="slow")
async def linger(ctx: hf.Context, seconds: float = 30.0) -> str:
    ctx.log("lingering", seconds=seconds)
    ctx.progress(1, 2, "half way")
    await asyncio.sleep(seconds)
    return "done"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How one command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def invoke(*arguments: str, stdin: str | None = None, **environ: str | None) -> Ran:
    result = CliRunner(env=environ).invoke(cli, arguments, input=stdin, prog_name="holdfast")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(code=result.exit_code, out=result.stdout, err=result.stderr)


@pytest.fixture
def holdfast(holdfast_url):
    """Run one command in this process, on a database of the test's own.

    With HOLDFAST_TEST_DOOR=server it goes through a server instead: the same tests hold for both doors.
    """
    if os.environ.get("HOLDFAST_TEST_DOOR") != "server":
        yield partial(invoke, HOLDFAST_URL=holdfast_url)
        return
    with a_server(holdfast_url) as url:
        yield partial(invoke, HOLDFAST_URL=url, HOLDFAST_ENV="local")


@pytest.fixture
def server_url(holdfast_url):
    """A server over the test's database."""
    with a_server(holdfast_url) as url:
        yield url


@pytest.fixture
def bare():
    """Run one command that needs no database: there is none."""
    return partial(invoke, HOLDFAST_URL="postgresql://127.0.0.1:1/nowhere")


@pytest.fixture
def seed(holdfast_url):
    """Put the database into a state, with the engine's verbs by hand."""

    def run(prepare: Any) -> Any:
        async def work() -> Any:
            async with Engine(holdfast_url, Settings()) as engine:
                return await prepare(EngineHarness(engine))

        return run_coroutine(work())

    return run


@pytest.fixture
def holdfast_behind(holdfast, seed):
    """Run a command while somebody else changed something and has not committed yet, which he does once it waits."""

    def run(statement: str, *arguments: str) -> Ran:
        async def both(harness: Any) -> Ran:
            database = harness.engine.database
            async with database.transaction() as session:
                await session.fetch(statement)
                command = asyncio.create_task(asyncio.to_thread(holdfast, *arguments))
                assert await waits(database, command), command.result()
            return await command

        return seed(both)

    return run


@pytest.fixture
def shop(tmp_path) -> Path:
    """A file with an app in it."""
    path = tmp_path / "cli_shop.py"
    path.write_text(SHOP)
    return path


class Program:
    """`python -m holdfast …` as processes; those still running are ended with the test."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._started: list[subprocess.Popen[str]] = []

    def environment(self, **given: str) -> dict[str, str]:
        """Ours, without the settings of the test run, finding this package and the test's database."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        ours |= {"PYTHONPATH": str(Path(package.__file__).parent.parent), "NO_COLOR": "", "HOLDFAST_URL": self._url}
        ours |= {"HOLDFAST_PORT": "0", "HOLDFAST_UNSAFE": "1"}
        return ours | given

    def run(self, *arguments: str, **given: str) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *arguments],
            env=self.environment(**given),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Ran(code=done.returncode, out=done.stdout, err=done.stderr)

    def start(self, *arguments: str, **given: str) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *arguments],
            env=self.environment(**given),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        self._started.append(started)
        return started

    def on_a_terminal(self, *arguments: str, module: str | None = "holdfast", **given: str) -> str:
        """Run a command whose stdout and stderr are a terminal; answers what it shows."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, *(() if module is None else ("-m", module)), *arguments],
            env=self.environment(**{"TERM": "xterm-256color", "COLUMNS": "160", **given}),
            stdout=theirs,
            stderr=theirs,
        )
        self._started.append(process)
        os.close(theirs)
        shown = b""
        # A terminal whose last user left answers with an error, not with an end.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 65536):
                shown += part
        process.wait(30)
        os.close(ours)
        return shown.decode()

    def close(self) -> None:
        for one in self._started:
            if one.poll() is None:
                one.terminate()
                try:
                    one.wait(10)
                except subprocess.TimeoutExpired:
                    one.kill()
            one.communicate()


@pytest.fixture
def program(holdfast_url):
    made = Program(holdfast_url)
    yield made
    made.close()
