"""The blocking client offers whatever the asynchronous one does, and does the same."""

from __future__ import annotations

import asyncio
import inspect

import pytest

import holdfast as hf
from holdfast.client.blocking import SyncClient
from holdfast.client.blocking_handles import SyncDatasets, SyncDeadLetters, SyncRun, SyncTask
from holdfast.client.client import Client
from holdfast.client.datasets import DatasetClient
from holdfast.client.dead import DeadLetters
from holdfast.client.runs import Run
from holdfast.client.task import Task
from holdfast.testing.factories import a_failed_task

INNER = {"engine", "over", "number_of"}
"""For those who work on the same event loop."""
TWINS = [
    (Client, SyncClient),
    (Task, SyncTask),
    (Run, SyncRun),
    (DeadLetters, SyncDeadLetters),
    (DatasetClient, SyncDatasets),
]


def public(kind: type) -> dict[str, list[str]]:
    """Names, and what each takes."""
    found = {}
    for name, member in inspect.getmembers(kind):
        if not name.startswith("_"):
            taken = inspect.signature(member).parameters if inspect.isfunction(member) else ()
            found[name] = [one for one in taken if one != "connection"]
    return found


@pytest.mark.parametrize(("kind", "twin"), TWINS, ids=lambda kind: kind.__name__)
def test_every_name_of_the_client_has_its_twin(kind, twin):
    expected = {name: taken for name, taken in public(kind).items() if name not in INNER}
    found = {name: taken for name, taken in public(twin).items() if name != "finished"}
    assert found == expected


async def test_dead_letters_and_effects_are_there_for_blocking_code(dispatcher, engine, holdfast_url):
    task_id = await a_failed_task(dispatcher)
    settings = hf.Settings.load({"HOLDFAST_URL": holdfast_url})

    def blocking() -> int:
        with SyncClient(settings, {}) as client:
            assert [letter.task_id for letter in client.dead.list()] == [task_id]
            assert client.effects(task_id) == client.task(task_id).effects() == []
            assert client.datasets.generations() == []
            assert client.ending(task_id).state == "failed"
            return client.dead.redrive(task_id, reason="mended", actor="anna")

    assert await asyncio.to_thread(blocking) == 2
