"""The blocking client offers whatever the asynchronous one does, and does the same."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import threading

import pytest

import holdfast as hf
from holdfast.client.client import Client
from holdfast.client.datasets import DatasetClient
from holdfast.client.dead_letters import DeadLetters
from holdfast.client.runs import Run
from holdfast.client.sync_client import SyncClient
from holdfast.client.sync_handles import SyncDatasets, SyncDeadLetters, SyncRun, SyncTask
from holdfast.client.task import Task
from holdfast.errors import Invalid, Unavailable
from holdfast.testing.factories import a_failed_task
from holdfast.worker.runtime.processor import SyncProcessor

INNER = {"engine", "over", "number_of", "make_ready"}
"""For those who work on the same event loop."""
TWINS = [
    (Client, SyncClient),
    (Task, SyncTask),
    (Run, SyncRun),
    (DeadLetters, SyncDeadLetters),
    (DatasetClient, SyncDatasets),
]
BLOCKING_PROPERTIES = {"DeadLetters": "SyncDeadLetters", "DatasetClient": "SyncDatasets"}


def signatures(kind: type) -> dict[str, inspect.Signature | str]:
    """The public members of a class: the signature of each method, the result of each property."""
    found: dict[str, inspect.Signature | str] = {}
    for name, member in inspect.getmembers(kind):
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            found[name] = member.fget.__annotations__["return"]
        else:
            found[name] = inspect.signature(member)
    return found


def blocking_signatures(kind: type) -> dict[str, inspect.Signature | str]:
    """The signatures that the blocking counterpart of an asynchronous class must have."""
    found: dict[str, inspect.Signature | str] = {}
    for name, signature in signatures(kind).items():
        if name in INNER:
            continue
        if isinstance(signature, str):
            found[name] = BLOCKING_PROPERTIES.get(signature, signature)
            continue
        parameters = [one for one in signature.parameters.values() if one.name != "connection"]
        answer = re.sub(r"\b(Task|Run)\b", r"Sync\1", signature.return_annotation).replace("AsyncIterator", "Iterator")
        found[name] = signature.replace(parameters=parameters, return_annotation=answer)
    return found


@pytest.mark.parametrize(("kind", "twin"), TWINS, ids=lambda kind: kind.__name__)
def test_every_method_has_a_blocking_counterpart_with_the_same_signature(kind, twin):
    found = {name: signature for name, signature in signatures(twin).items() if name != "finished"}
    assert found == blocking_signatures(kind)


@pytest.mark.parametrize("twin", [twin for _, twin in TWINS], ids=lambda twin: twin.__name__)
def test_every_blocking_method_is_documented_and_is_no_coroutine(twin):
    methods = {name: one for name, one in inspect.getmembers(twin, inspect.isfunction) if not name.startswith("_")}
    assert not {name for name, method in methods.items() if not inspect.getdoc(method)}
    # A blocking method has the signature of the asynchronous one because it wraps it; it must not be that one.
    assert not {
        name
        for name, method in methods.items()
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
    }


async def test_dead_letters_and_effects_are_there_for_blocking_code(harness, engine, holdfast_url):
    task_id = await a_failed_task(harness)
    settings = hf.Settings.load({"HOLDFAST_URL": holdfast_url})

    def blocking() -> int:
        with SyncClient(settings, {}) as client:
            assert [letter.task_id for letter in client.dead.list()] == [task_id]
            assert client.effects(task_id) == client.task(task_id).effects() == []
            assert client.datasets.generations() == []
            assert client.ending(task_id).state == "failed"
            return client.dead.redrive(task_id, reason="mended", actor="anna")

    assert await asyncio.to_thread(blocking) == 2


@pytest.fixture
def blocking_app(holdfast_url):
    made = hf.App("shop", settings=hf.Settings(url=holdfast_url))

    @made.action
    async def charge(order: int) -> int:
        return order

    return made


def asked(door) -> object:
    """Something that needs it to be open."""
    return door.process_once() if isinstance(door, SyncProcessor) else door.enqueue("shop.charge", order=1)


def our_threads() -> set[str]:
    return {one.name for one in threading.enumerate()} & {"holdfast-client", "holdfast-processor"}


def test_who_asks_what_is_not_open_is_told_at_once_and_it_can_be_opened_again(blocking_app, subtests):
    for kind in ["sync_client", "sync_processor"]:
        with subtests.test(kind=kind):
            door = getattr(blocking_app, kind)()
            for _ in range(2):
                with pytest.raises(Invalid) as refused:
                    asked(door)
                assert refused.value.code == "client_closed"
                with door:
                    asked(door)
                    with pytest.raises(Invalid) as refused, door:
                        pass
                    assert refused.value.code == "client_open"
                    asked(door)
                assert not our_threads()


def test_what_could_not_be_opened_leaves_no_thread(blocking_app, subtests):
    for kind in ["sync_client", "sync_processor"]:
        with subtests.test(kind=kind):
            blocking_app.configure(hf.Settings(url="postgresql://127.0.0.1:1/nowhere"))
            door = getattr(blocking_app, kind)()
            for _ in range(2):
                with pytest.raises(Unavailable), door:
                    pass
                assert not our_threads()
            with pytest.raises(Invalid, match="client_closed"):
                asked(door)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_is_told_that_it_needs_its_own(blocking_app, subtests):
    for kind in ["sync_client", "sync_processor"]:
        with subtests.test(kind=kind), getattr(blocking_app, kind)() as opened:
            if not (child := os.fork()):
                code = 1
                try:
                    asked(opened)
                except Invalid as error:
                    # Leaving the block must not wait for the thread either.
                    opened.__exit__(None, None, None)
                    code = 0 if error.code == "client_closed" and "forked" in str(error) else 2
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            asked(opened)


def test_whoever_still_waits_when_it_closes_is_told(blocking_app):
    waits, told = threading.Event(), []

    async def for_ever() -> None:
        waits.set()
        await asyncio.Event().wait()

    def wait() -> None:
        with pytest.raises(Invalid) as refused:
            client.finished(for_ever())
        told.append(refused.value.code)

    with blocking_app.sync_client() as client:
        thread = threading.Thread(target=wait)
        thread.start()
        waits.wait()
    thread.join()
    assert told == ["client_closed"]
