"""Blocking calls beside the event loop: bounded, in nobody else's threads, and given up with whoever waited."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from holdfast._internal.blocking_pool import BlockingCallPool
from holdfast.launchers.ecs import EcsLauncher
from holdfast.launchers.kubernetes import KubernetesLauncher
from holdfast.net.guarded_request import resolve

MANY = 64
"""More than the event loop has threads of its own."""


class Hanging:
    """Calls of it come back when it is told to, or after a while: nobody could end a thread."""

    def __init__(self):
        self._end = threading.Event()
        self.end = self._end.set

    def __call__(self):
        self._end.wait(20)


@pytest.fixture
def hang():
    made = Hanging()
    yield made
    made.end()


async def loops_own_thread_answers():
    """Give those who ask a turn, then use what resolves names for everybody."""
    await asyncio.sleep(0)
    return await asyncio.wait_for(asyncio.to_thread(str, 7), 5) == "7"


def threads(name):
    return sum(one.name == f"holdfast-{name}" for one in threading.enumerate())


async def test_calls_that_hang_take_a_few_threads_and_none_of_the_loops(hang):
    apart = BlockingCallPool("hanging", threads_max=3)
    calls = [asyncio.create_task(apart.run(hang)) for _ in range(MANY)]
    assert await loops_own_thread_answers() and threads("hanging") == 3
    for call in calls:
        call.cancel()


async def test_a_call_that_nobody_waits_for_any_more_is_not_made(hang):
    apart, made = BlockingCallPool("late", threads_max=1), []
    first = asyncio.create_task(apart.run(hang))
    given_up = asyncio.create_task(apart.run(made.append, "given up"))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.sleep(0)
    waiting = asyncio.create_task(apart.run(made.append, "waited for"))
    hang.end()
    await asyncio.gather(first, waiting)
    assert made == ["waited for"]


async def test_what_a_call_raises_arrives():
    with pytest.raises(ValueError, match="seven"):
        await BlockingCallPool("wrong", threads_max=1).run(int, "seven")


async def test_names_that_do_not_resolve_keep_nobody_else_from_resolving(hang, monkeypatch):
    def slowly(*_given, **_options):
        hang()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", slowly)
    asking = [asyncio.create_task(resolve("slow.example.com", 443)) for _ in range(MANY)]
    assert await loops_own_thread_answers()
    for one in asking:
        one.cancel()


@pytest.mark.parametrize("kind", [EcsLauncher, KubernetesLauncher])
async def test_a_platform_that_hangs_keeps_nobody_else_from_resolving(kind, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        if kind is EcsLauncher:
            given = {"region": "eu-1", "endpoint_url": url, "task_definition": "shop:1", "container": "worker"}
        else:
            given = {"url": url, "token": "secret", "image": "shop:1"}
        launcher = kind("silent", given)
        asking = [asyncio.create_task(launcher.stop(f"hf-{number}", "handle")) for number in range(MANY)]
        assert await loops_own_thread_answers()
        for one in asking:
            one.cancel()
