"""A server with default settings, and a role that may create no roles, as managed databases have them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import httpx
import pytest
from tests.own_server import OwnServer
from tests.waiting import poll

from holdfast.store.database import Database
from holdfast.testing.databases import with_database
from holdfast.testing.run_coroutine import run_coroutine

ROLE = "shop"


@dataclass(frozen=True, slots=True)
class Stock:
    """A server of its own; `url` is the ordinary role's way to its database."""

    admin_url: str
    url: str

    def holdfast(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "holdfast", *words], capture_output=True, text=True, timeout=100, env=self.environ
        )

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "HOLDFAST_URL": self.url, "HOLDFAST_UNSAFE": "1"}

    def administer(self, *statements: str) -> None:
        async def run() -> None:
            connection = await asyncpg.connect(self.admin_url)
            for statement in statements:
                await connection.execute(statement)
            await connection.close()

        run_coroutine(run())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    server = OwnServer(tmp_path_factory.mktemp("stock"), jit="on", fsync="off")
    yield server
    server.close()


@pytest.fixture
def stock(server: OwnServer) -> Iterator[Stock]:
    stock = Stock(server.url, with_database(server.url, ROLE).replace("postgres@", f"{ROLE}@", 1))
    stock.administer(f"create role {ROLE} login", f"create database {ROLE} owner {ROLE}")
    yield stock
    stock.administer(f"drop database {ROLE} with (force)", "drop role if exists holdfast_tenant", f"drop role {ROLE}")


@pytest.mark.slow("it fills tables or starts servers; test_a_server_whose_role_is_taken_away_is_not_ready is fast")
async def test_sessions_of_every_kind_have_jit_off_on_a_server_that_has_it_on(server):
    admin = await asyncpg.connect(server.url)
    assert await admin.fetchval("show jit") == "on", "else this test shows nothing"
    await admin.close()
    for database in (Database(server.url), Database(server.url, repeats_itself=True), Database(server.url).apart()):
        await database.open()
        own = await database.connect()
        assert (await database.fetchval("show jit"), await own.fetchval("show jit")) == ("off", "off")
        await own.close()
        await database.close()


@pytest.mark.slow("it fills tables or starts servers; test_a_server_whose_role_is_taken_away_is_not_ready is fast")
def test_migrate_names_what_an_administrator_has_to_run_and_the_server_waits_for_it(stock):
    done = stock.holdfast("migrate")
    assert done.returncode == 0
    lines = [line.strip() for line in done.stderr.splitlines()]
    wanted = ["create role holdfast_tenant nologin;", 'grant holdfast_tenant to "shop";']
    assert [line for line in lines if line in wanted] == wanted
    assert json.loads(stock.holdfast("migrate", "-o", "json").stdout)["missing"] == wanted

    refused = stock.holdfast("server", "--port", "0")
    assert refused.returncode != 0
    assert "tenant_role_missing" in refused.stderr and all(line in refused.stderr for line in wanted)

    doctor = stock.holdfast("doctor")
    assert doctor.returncode != 0 and all(line in doctor.stdout + doctor.stderr for line in wanted)

    stock.administer(*wanted)
    again = stock.holdfast("migrate")
    assert again.returncode == 0 and "administrator" not in again.stderr
    assert "tenant_role_missing" not in stock.holdfast("doctor").stdout


def test_a_server_whose_role_is_taken_away_is_not_ready(stock, tmp_path):
    stock.administer("create role holdfast_tenant nologin", f"grant holdfast_tenant to {ROLE}")
    assert stock.holdfast("migrate").returncode == 0
    log = tmp_path / "log"
    with log.open("w") as stream:
        serving = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "server", "--port", "0"], stderr=stream, env=stock.environ
        )
    try:
        url = poll(lambda: _address(log))
        assert httpx.get(f"{url}/readyz").status_code == 200
        stock.administer(f"revoke holdfast_tenant from {ROLE}")
        answer = httpx.get(f"{url}/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, "tenant_role_missing")
    finally:
        serving.terminate()
        serving.wait()


def _address(log: Path) -> str | None:
    found = [line.rpartition(" ")[2] for line in log.read_text().splitlines() if line.startswith("HTTP API on ")]
    return found[0] if found else None


@pytest.mark.slow("it fills tables or starts servers; test_a_server_whose_role_is_taken_away_is_not_ready is fast")
def test_a_worker_of_an_ordinary_role_needs_no_tenant_role(stock, tmp_path):
    app = tmp_path / "app.py"
    app.write_text(
        "import holdfast as hf\napp = hf.App('shop')\n@app.action\ndef double(n: int) -> int:\n    return 2 * n\n"
    )
    assert stock.holdfast("migrate").returncode == 0
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", "work", f"{app}:app"], env=stock.environ, stderr=subprocess.DEVNULL
    ) as working:
        try:
            # The action is known once the worker has registered it.
            submit = ("task", "submit", "shop.double", "--input", '{"n": 4}')
            task_id = poll(lambda: stock.holdfast(*submit).stdout.split())[0]
            ended = stock.holdfast("task", "wait", task_id)
            assert (ended.returncode, ended.stdout.split()[-1]) == (0, "8"), ended.stderr
        finally:
            working.terminate()
