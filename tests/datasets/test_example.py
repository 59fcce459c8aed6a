"""The example of the docs, as a program and inside the test kit, where its parts can be broken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

import holdfast as hf
from holdfast.authoring.loader import load_app
from holdfast.testing.idle import run_until_idle

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ingest.py"


@pytest.fixture
def example(holdfast_url):
    app = load_app(f"{EXAMPLE}:app")
    app.configure(hf.Settings(url=holdfast_url))
    return sys.modules[app.actions["ingest.list_files"].function.__module__]


async def test_readers_see_one_version_or_the_other(example, tmp_path):
    said: list[str] = []
    assert await example.story(tmp_path, said.append) == {(100, 3), (150, 4)}
    assert any(one.startswith("version 1 completed with 100 rows") for one in said)
    assert any("there are 140 now" in one for one in said)


@pytest.mark.slow("it runs many tasks with a real worker; test_readers_see_one_version_or_the_other is fast")
def test_it_runs_by_itself(holdfast_url, tmp_path):
    done = start(holdfast_url, tmp_path, EXAMPLE)
    assert "version 2 completed with 150 rows" in done.stdout


@pytest.mark.slow("it runs many tasks with a real worker; test_readers_see_one_version_or_the_other is fast")
async def test_killed_it_goes_on_and_once_it_is_through_it_may_be_started_again(example, tmp_path, holdfast_url, clock):
    killed = tmp_path / "killed.py"
    killed.write_text(KILLED)
    assert start(holdfast_url, tmp_path, killed, EXAMPLE).returncode == -signal.SIGKILL
    await clock.advance(seconds=example.LEASE_SECONDS)
    said: list[str] = []
    await example.story(tmp_path, said.append)
    [first, second] = [one for one in said if " completed with " in one]
    assert first.startswith("version 1 completed with 100 rows") and "version 2 completed with 150" in second
    said.clear()
    await example.story(tmp_path, said.append)
    assert any("there are 140 now" in one for one in said)


KILLED = """
import asyncio, os, pathlib, signal, sys
from holdfast.authoring.loader import load_app

module = sys.modules[load_app(f"{sys.argv[1]}:app").actions["ingest.list_files"].function.__module__]
read = module.read

def dying(path, version):
    if version == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return read(path, version)

module.read = dying
asyncio.run(module.story(pathlib.Path(__file__).parent))
"""


def start(holdfast_url, folder, *arguments):
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environ |= {"HOLDFAST_URL": holdfast_url, "PYTHONPATH": str(Path(hf.__file__).parent.parent)}
    command = [sys.executable, *map(str, arguments)]
    environ["TMPDIR"] = str(folder)
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow("it runs many tasks with a real worker; test_readers_see_one_version_or_the_other is fast")
async def test_a_broken_file_fails_its_node_and_readers_keep_what_they_have(example, tmp_path, engine):
    example.write_files(tmp_path, {"monday": range(1, 4)})
    async with example.app.client() as client:
        await client.start(example.ingest, folder=str(tmp_path), version=1)
        await run_until_idle(example.app, engine)
        (tmp_path / "tuesday.csv").write_text("order_id,day,cents\n7,the day after,100\n")
        [run] = await client.datasets.build(
            example.orders_with_source, example.ingest, [{"folder": str(tmp_path), "version": 2}]
        )
        await run_until_idle(example.app, engine)
        assert await run.wait(timeout=5) == "failed"
        with pytest.raises(hf.Conflict):
            await client.datasets.cut_over("orders", 2)
        reader = await asyncpg.connect(client.database_url)
        assert await example.look(reader) == (3, 3)
        (tmp_path / "tuesday.csv").write_text("order_id,day,cents\n7,2026-11-17,100\n")
        await run.retry("the file was mended")
        await run_until_idle(example.app, engine)
        assert (await run.wait(timeout=5), await example.look(reader)) == ("completed", (4, 4))
        await reader.close()
