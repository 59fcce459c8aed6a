"""The benchmark as a program: what it prints, what it refuses, and that it leaves nothing behind. Never how fast."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import asyncpg
import msgspec
import pytest

import holdfast
from holdfast.store.embedded.server import EmbeddedServer, start
from holdfast.testing.databases import remove_home, throw_away_home
from holdfast_bench import recovery, suite
from holdfast_bench.latency import latency_once
from holdfast_bench.recovery import recovery_once
from holdfast_bench.redrive import measure_redrive
from holdfast_bench.trial import Trial

pytestmark = pytest.mark.xdist_group("bench")

SOURCES = Path(holdfast.__file__).parents[1]
TINY = ("--tasks", "100", "--rounds", "1", "--processes", "1", "--quick")


@pytest.fixture
def careless_server() -> Iterator[EmbeddedServer]:
    home = throw_away_home()
    running = start(home, settings={"fsync": "off", "shared_buffers": "16MB"})
    yield running
    running.close()
    remove_home(home)


def bench(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment |= {"HOLDFAST_URL": url, "PYTHONPATH": str(SOURCES)}
    command = [sys.executable, "-m", "holdfast_bench", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def databases(url: str) -> set[str]:
    async def read() -> set[str]:
        connection = await asyncpg.connect(url)
        try:
            return {row[0] for row in await connection.fetch("select datname from pg_database")}
        finally:
            await connection.close()

    return asyncio.run(read())


def tiny(url: str, *parts: str, more: Sequence[str] = ()) -> dict[str, Any]:
    """The results of the smallest run that measures these parts."""
    done = bench(url, *TINY, "--only", ",".join(parts), "-o", "json", *more)
    assert done.returncode == 0, done.stderr
    # The progress of the bench and nothing of what its workers log.
    assert " INFO " not in done.stderr and " WARNING " not in done.stderr, done.stderr
    results: dict[str, Any] = json.loads(done.stdout)
    return results


def test_a_tiny_run_prints_the_promised_object_draws_it_and_leaves_nothing(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    before, plot = databases(server.url), tmp_path / "rates.svg"
    results = tiny(server.url, "drain", "enqueue", more=["--plot", str(plot)])

    assert {"tasks_per_s", "raw_ceiling_per_s", "ratio"} <= results["drain"].keys()
    assert {"bulk_per_s", "bulk_ratio", "single_per_s", "single_ratio"} <= results["enqueue"].keys()
    assert (results["flow"], results["peers"]) == ({}, {})
    assert (results["drain"]["doubles"], results["drain"]["losses"], results["drain"]["violations"]) == (0, 0, [])
    assert databases(server.url) == before
    labels = [text.text for text in ElementTree.parse(plot).iter("{http://www.w3.org/2000/svg}text")]
    assert "Holdfast" in labels and "raw SQL" in labels


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize("parts", [("backlog",), ("size", "memory")], ids="-".join)
def test_the_long_parts_print_what_they_promise(server: EmbeddedServer, parts: tuple[str, ...]) -> None:
    results = tiny(server.url, *parts)

    if parts == ("backlog",):
        assert results["backlog"]["ratio"] > 0
        assert (results["backlog"]["doubles"], results["backlog"]["losses"]) == (0, 0)
    else:
        assert results["bytes_per_task"] > 0
        assert results["memory"].keys() >= {"drift_mb"}


def test_a_server_that_may_lose_commits_is_refused(careless_server: EmbeddedServer) -> None:
    before = databases(careless_server.url)
    done = bench(careless_server.url, "--quick")

    assert done.returncode == 2
    assert "fsync is off" in done.stderr and "Switch fsync on" in done.stderr
    assert done.stdout == ""
    assert databases(careless_server.url) == before


@pytest.mark.parametrize("asked", [["drian"], ["drain,drian"], ["drian", "drain"]], ids=" ".join)
def test_an_unknown_part_is_refused(server: EmbeddedServer, asked: list[str]) -> None:
    done = bench(server.url, *(word for part in asked for word in ("--only", part)))

    assert done.returncode == 2
    assert "'drian' is none of drain" in " ".join(done.stderr.split())


@pytest.mark.representative(one_in=4, family="crews")
async def test_every_letter_is_run_again_beside_other_work(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast_bench.redrive.LETTERS_QUICK", 200)
    found = await measure_redrive(trial)

    assert (found["succeeded"], found["losses"], found["violations"]) == (200, 0, [])
    assert len(found["ratios"]) == len(found["released_meanwhile"]) == 3
    assert found["ratio"] == sorted(found["ratios"])[1] > 0


@pytest.mark.representative(one_in=4, family="crews")
async def test_a_killed_worker_is_followed_by_one_more_execution(trial: Trial) -> None:
    quick = msgspec.structs.replace(trial.orders(), lease_seconds=1.0, heartbeat_seconds=0.3)
    found = await recovery_once(trial, 2, quick)

    assert (found["recovered"], found["overlaps"], found["extra_executions"]) == (2, 0, 0)


@pytest.mark.slow("it measures; test_a_server_that_may_lose_commits_is_refused is fast")
async def test_every_task_of_the_latency_run_starts_once(trial: Trial) -> None:
    found = await latency_once(trial, 1)

    assert (found["tasks"], found["losses"], found["doubles"]) == (20, 0, 0)
    assert 0 < found["p50"] <= found["p99"]


async def test_what_was_measured_is_kept_when_a_later_part_fails(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    async def measured(_trial: Trial) -> dict[str, float]:
        return {"p50": 1.0}

    async def broken(_trial: Trial) -> dict[str, float]:
        raise ProcessLookupError("no such process")

    parts = {"latency": ("latency_ms", measured), "recovery": ("recovery_s", broken), "idle": ("idle", measured)}
    monkeypatch.setattr(suite, "_MEASURES", parts)
    results = await suite.run_suite(trial, ["latency", "recovery", "idle"])
    assert (results["latency_ms"], results["idle"]) == ({"p50": 1.0}, {"p50": 1.0})
    assert results["failed"] == {"recovery": "ProcessLookupError: no such process"}
    assert suite.losses_and_doubles(results) == ["recovery failed: ProcessLookupError: no such process"]


def test_a_process_that_is_gone_can_be_killed_once_more() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    recovery._end(child.pid)
