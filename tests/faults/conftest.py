from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.faults.fleet import LEASE_SECONDS, Fleet
from tests.faults.load import Load
from tests.faults.victim_app import LOG_VARIABLE, app

from holdfast.settings.settings import Settings


@pytest.fixture
def chance(request):
    """The same faults in the same order each time; another seed with each test."""
    return random.Random(request.node.name)


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Where executions are written down."""
    path = tmp_path / "executions"
    monkeypatch.setenv(LOG_VARIABLE, str(path))
    return path


@pytest.fixture
def quick_settings(holdfast_url):
    settings = Settings(url=holdfast_url)
    worker = replace(
        settings.worker,
        lease_seconds=LEASE_SECONDS,
        heartbeat_seconds=0.4,
        poll_seconds=0.1,
        slots=20,
        shutdown_seconds=3.0,
    )
    return replace(settings, worker=worker, loops=replace(settings.loops, reap_seconds=0.1, reconcile_seconds=0.05))


@pytest.fixture
async def load(quick_settings, chance):
    app.configure(quick_settings)
    async with app.client() as client:
        yield Load(client, chance)


@pytest.fixture
def fleet(holdfast_url, log):
    made = Fleet(holdfast_url, log)
    yield made
    made.stop()
