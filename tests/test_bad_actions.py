"""User code at its worst: each attempt ends with its cause on record, and the worker goes on with the next."""

from __future__ import annotations

import asyncio
import math
import sys
from contextvars import ContextVar
from dataclasses import dataclass

import pytest
from tests.by_sql import by_sql

import holdfast as hf
from holdfast.testing.idle import run_until_idle

app = hf.App("wild")
EXCEPTION = "DAG_TASK_EXECUTION_EXCEPTION"
INPUT = "DAG_VALIDATION_INPUT_INVALID"
OUTPUT = "DAG_VALIDATION_OUTPUT_INVALID"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Baited(Exception):
    @property
    def code(self) -> str:
        raise RuntimeError("not that one")

    @property
    def retry_after(self) -> float:
        raise SystemError("nor that one")


class EndsEverything(BaseException):
    pass


def deep(levels: int) -> None:
    if levels:
        deep(levels - 1)
    raise ValueError("x" * 10_000)


def chained(links: int) -> None:
    try:
        if links:
            chained(links - 1)
        raise ValueError("first")
    except ValueError as error:
        raise ValueError("and then " + "y" * 1_000) from error


async def coroutine() -> int:
    return 1


@dataclass
class Kept:
    loop: object = None


ERRORS = {
    "str() raises": (Unspeakable, EXCEPTION),
    "properties raise": (Baited, EXCEPTION),
    "NUL in the message": (lambda: ValueError("a\x00b"), EXCEPTION),
    "surrogates in the message": (lambda: ValueError("\ud800 \udfff"), EXCEPTION),
    "10 MB of message": (lambda: ValueError("x" * 10_000_000), EXCEPTION),
    "SystemExit": (lambda: SystemExit(3), EXCEPTION),
    "KeyboardInterrupt": (KeyboardInterrupt, EXCEPTION),
    "GeneratorExit": (GeneratorExit, EXCEPTION),
    "StopIteration": (lambda: StopIteration(7), EXCEPTION),
    "StopAsyncIteration": (StopAsyncIteration, EXCEPTION),
    "another BaseException": (EndsEverything, EXCEPTION),
    "CancelledError": (asyncio.CancelledError, EXCEPTION),
    "ExceptionGroup": (
        lambda: ExceptionGroup("many", [ValueError("a"), ExceptionGroup("b", [KeyError("c")])]),
        EXCEPTION,
    ),
    "BaseExceptionGroup": (lambda: BaseExceptionGroup("all", [KeyboardInterrupt(), SystemExit(1)]), EXCEPTION),
    "MemoryError": (MemoryError, EXCEPTION),
    "RecursionError": (RecursionError, EXCEPTION),
    "an error with a bad code": (lambda: _with(ValueError("x"), code="a\x00b"), EXCEPTION),
    "an error with a huge Retry-After": (lambda: _with(ConnectionError("validation"), retry_after=math.inf), EXCEPTION),
    "an error that is its own cause": (lambda: _own_cause(), EXCEPTION),
}
OUTPUTS = {
    "NaN": math.nan,
    "infinity deep inside": {"a": [math.inf]},
    "NUL": "a\x00b",
    "surrogate": "\ud800",
    "too large": "x" * (8 * 1024 * 1024 + 1),
    "too many digits": 10**5000,
    "function": print,
    "object": object(),
    "nested": None,
    "itself": None,
}


def _with(error: Exception, **fields: object) -> Exception:
    for name, value in fields.items():
        setattr(error, name, value)
    return error


def _own_cause() -> Exception:
    error = ValueError("snake")
    error.__cause__ = error
    return error


@app.action(max_retries=0)
async def raises(what: str) -> None:
    raise ERRORS[what][0]()


@app.action(max_retries=0)
async def raises_later(what: str) -> None:
    await asyncio.sleep(0)
    raise ERRORS[what][0]()


@app.action(max_retries=0)
def raises_in_thread(what: str) -> None:
    raise ERRORS[what][0]()


@app.action(max_retries=0)
async def returns(what: str) -> object:
    return output_of(what)


@app.action(max_retries=0)
def returns_in_thread(what: str) -> object:
    return output_of(what)


def output_of(what: str) -> object:
    if what == "nested":
        value: object = 1
        for _ in range(50_000):
            value = [value]
        return value
    if what == "itself":
        loop: list[object] = []
        loop.append(loop)
        return loop
    return OUTPUTS[what]


@app.action(max_retries=0)
async def returns_a_coroutine() -> object:
    return coroutine()


@app.action(max_retries=0)
def blows_the_stack() -> None:
    sys.setrecursionlimit(1000)
    blows_the_stack.function()


@app.action(max_retries=0)
async def long_trace(kind: str) -> None:
    {"deep": lambda: deep(300), "chained": lambda: chained(200)}[kind]()


@app.action(max_retries=0)
async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(10)


@app.action(max_retries=0)
async def swallows_its_own_cancel(number: int) -> int:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    try:
        await asyncio.sleep(10)
    except asyncio.CancelledError:
        return number
    return -1


@app.action
async def good(number: int) -> int:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(0))
    return number


@pytest.fixture
async def client(engine):
    app.configure(hf.Settings(url=engine.database.url))
    async with app.client() as opened:
        yield opened


async def failures(engine, task) -> list[tuple[str, str]]:
    rows = await engine.database.fetch(
        "select code, message, traceback from holdfast.failure where task_id = $1", int(task.task_id)
    )
    assert all(len(row["message"]) <= 8 * 1024 and len(row["traceback"]) <= 64 * 1024 for row in rows)
    return [row["code"] for row in rows]


async def run_beside_good_work(client, engine, bad):
    """All of it ends: the bad tasks failed with one attempt each, the good ones before, between and after completed."""
    tasks, fine = [], []
    for number, (action, given) in enumerate(bad):
        fine.append(await client.enqueue(good, number=number))
        tasks.append(await client.enqueue(action, **given))
    fine.append(await client.enqueue(good, number=len(bad)))
    await run_until_idle(app, engine)
    assert [await task.result(timeout=5) for task in fine] == list(range(len(bad) + 1))
    assert [await task.wait(timeout=5) for task in tasks] == ["failed"] * len(bad)
    return tasks


@pytest.mark.parametrize("action", [raises, raises_later, raises_in_thread], ids=lambda action: action.name)
async def test_whatever_an_action_raises_is_data(action, client, engine):
    tasks = await run_beside_good_work(client, engine, [(action, {"what": what}) for what in ERRORS])
    for task, (_, code) in zip(tasks, ERRORS.values(), strict=True):
        assert await failures(engine, task) == [code]


@pytest.mark.parametrize("action", [returns, returns_in_thread], ids=lambda action: action.name)
async def test_an_output_that_is_not_json_fails_its_task(action, client, engine):
    tasks = await run_beside_good_work(client, engine, [(action, {"what": what}) for what in OUTPUTS])
    for task in tasks:
        assert await failures(engine, task) == [OUTPUT]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_strange_endings_are_failures_too(client, engine):
    bad = [
        (returns_a_coroutine, {}),
        (blows_the_stack, {}),
        (long_trace, {"kind": "deep"}),
        (long_trace, {"kind": "chained"}),
        (cancels_itself, {}),
    ]
    tasks = await run_beside_good_work(client, engine, bad)
    assert await failures(engine, tasks[0]) == [OUTPUT]


async def test_a_cancel_that_user_code_swallows_does_not_reach_the_next_attempt(client, engine):
    tasks = [await client.enqueue(swallows_its_own_cancel, number=number) for number in range(5)]
    fine = [await client.enqueue(good, number=number) for number in range(5)]
    await run_until_idle(app, engine)
    assert [await task.result(timeout=5) for task in (*tasks, *fine)] == [*range(5), *range(5)]


@dataclass
class Touchy:
    what: str

    def __post_init__(self) -> None:
        raise ERRORS[self.what][0]()


@app.action
async def takes_touchy(touchy: Touchy) -> None:
    raise AssertionError("it never begins")


async def test_whatever_the_type_of_an_input_raises_is_a_refusal_of_it(client, engine):
    tasks = [await by_sql(client, takes_touchy.name, touchy={"what": what}) for what in ERRORS]
    await run_until_idle(app, engine)
    for task in tasks:
        assert await failures(engine, task) == [INPUT]


tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


@app.action
def leaves_its_name(name: str) -> str:
    before = tenant.get()
    tenant.set(name)
    return before


async def test_a_plain_function_sees_no_context_variable_of_another_attempt(client, engine):
    tasks = await client.enqueue_many(leaves_its_name, [{"name": f"tenant {number}"} for number in range(20)])
    await run_until_idle(app, engine)
    assert {await task.result(timeout=5) for task in tasks} == {"nobody"}
