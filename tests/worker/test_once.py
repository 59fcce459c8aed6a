"""`process_once`: the cases of the design's worker loop, one call at a time."""

from __future__ import annotations

import asyncio

import pytest

import holdfast as hf
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import Binding, Edge, Node
from holdfast.engine.queries.explain_run import why
from holdfast.errors import DispatchFailed, Invalid, LeaseLost
from holdfast.testing.factories import a_task


@pytest.fixture
def app(holdfast_url):
    made = hf.App("shop", settings=hf.Settings(url=holdfast_url))

    @made.action(max_retries=3, retry={"base_backoff_secs": 30.0})
    async def charge(ctx: hf.Context, order_id: int = 0, fails: bool = False) -> dict[str, int]:
        if fails:
            raise ConnectionResetError("connection reset by peer")
        return {"charged": order_id, "attempt": ctx.attempt}

    @made.action(max_retries=0)
    async def linger(seconds: float = 60.0) -> None:
        await asyncio.sleep(seconds)

    @made.action
    def thread(order_id: int) -> int:
        return order_id

    return made


@pytest.fixture
async def client(app):
    async with app.client() as opened:
        yield opened


async def test_an_empty_queue_is_not_an_error(app):
    async with app.processor(worker_id="one") as p:
        answer = await p.process_once()
    assert (answer.processed, answer.task_id, answer.retried) == (False, None, False)


async def test_an_executor_stands_around_each_task(holdfast_url):
    class Around:
        async def execute(self, attempt: hf.Attempt) -> object:
            return ["around", attempt.arguments, await attempt.call()]

    app = hf.App("shop", settings=hf.Settings(url=holdfast_url), executor=Around())

    @app.action(isolation="process")
    def double(x: int) -> int:
        return 2 * x

    async with app.client() as client, app.processor() as p:
        task = await client.enqueue(double, x=2)
        assert (await p.process_once()).processed
        assert await task.result(5) == ["around", {"x": 2}, 4]


async def test_a_task_held_by_another_worker_is_left_alone(app, client, harness):
    task = await client.enqueue("shop.charge", order_id=1)
    harness.know("shop.charge")
    lease = await harness.claim_task(task.task_id)
    async with app.processor() as p:
        assert not (await p.process_once()).processed
    found = await harness.task(task.task_id)
    assert (found.state, found.worker_id) == ("running", lease.worker_id)


async def test_success_completes_the_task(app, client):
    task = await client.enqueue("shop.charge", order_id=7)
    async with app.processor(worker_id="one") as p:
        answer = await p.process_once()
        assert (answer.processed, answer.task_id, answer.retried) == (True, task.task_id, False)
        assert not (await p.process_once()).processed
    assert await task.result(timeout=5) == {"charged": 7, "attempt": 1}


async def test_the_blocking_twin_does_the_same(app, client):
    task = await client.enqueue("shop.thread", order_id=7)

    def work() -> list[hf.Processed]:
        with app.sync_processor() as p:
            return [p.process_once(), p.process_once()]

    first, second = await asyncio.to_thread(work)
    assert (first.task_id, second.processed) == (task.task_id, False)
    assert await task.result(timeout=5) == 7


async def test_a_retriable_failure_is_retried_with_the_next_attempt(app, client, clock, harness):
    task = await client.enqueue("shop.charge", fails=True)
    async with app.processor() as p:
        answer = await p.process_once()
        assert (answer.processed, answer.task_id, answer.retried) == (True, task.task_id, True)
        assert not (await p.process_once()).processed, "it waits for its backoff"
        await clock.advance(seconds=60)
        await harness.reconcile_once()
        assert (await p.process_once()).retried
    assert (await harness.task(task.task_id)).attempt == 2


async def test_retry_disabled_ends_the_task_and_says_so(app, client, engine):
    task = await client.enqueue("shop.charge", fails=True)
    async with app.processor(retry_enabled=False) as p:
        answer = await p.process_once()
    assert (answer.processed, answer.retried) == (True, False)
    assert "automatic retries are off" in str(await why(engine.database, engine.catalog, 1, int(task.task_id)))


async def test_dead_letters_disabled_says_so(app, client, engine):
    task = await client.enqueue("shop.charge", fails=True)
    async with app.processor(retry_enabled=False, dead_letter_enabled=False) as p:
        await p.process_once()
    assert "No dead letter was opened" in str(await why(engine.database, engine.catalog, 1, int(task.task_id)))


async def test_max_attempts_lowers_the_budget_and_never_raises_it(app, client, harness):
    first = await client.enqueue("shop.charge", fails=True)
    async with app.processor(max_attempts=1) as p:
        assert not (await p.process_once()).retried
    assert (await harness.task(first.task_id)).state == "failed"
    second = await client.enqueue(app.actions["shop.charge"].options(max_retries=0), fails=True)
    async with app.processor(max_attempts=9) as p:
        assert not (await p.process_once()).retried
    assert (await harness.task(second.task_id)).state == "failed"


async def test_the_default_timeout_is_enforced_where_the_task_has_none(app, client, harness):
    task = await client.enqueue("shop.linger")
    async with app.processor(default_timeout_seconds=0.05) as p:
        answer = await p.process_once()
    assert (answer.processed, answer.retried) == (True, False)
    [attempt] = await harness.attempts(task.task_id)
    assert (attempt.state, attempt.code) == ("timed_out", "DAG_TASK_EXECUTION_TIMEOUT")


async def test_downstream_is_dispatched_and_the_run_finalised(app, client):
    flow = FlowDefinition(
        name="two",
        nodes=(
            Node(name="first", action="shop.charge", config={"order_id": 3}),
            Node(name="second", action="shop.thread"),
        ),
        edges=(
            Edge(
                upstream="first",
                downstream="second",
                bindings=(Binding(output_key="charged", input_key="order_id"),),
            ),
        ),
    )
    run = await client.start(flow)
    async with app.processor() as p:
        assert [(await p.process_once()).processed for _ in range(3)] == [True, True, False]
    assert await run.wait(timeout=5) == "completed"


async def test_a_failed_task_fails_its_run_and_what_waits_for_it_does_not_start(app, client):
    flow = FlowDefinition(
        name="broken",
        nodes=(
            Node(name="first", action="shop.charge", config={"fails": True}),
            Node(name="second", action="shop.linger"),
        ),
        edges=(Edge(upstream="first", downstream="second", is_order_only=True),),
    )
    run = await client.start(flow)
    async with app.processor(retry_enabled=False) as p:
        assert [(await p.process_once()).processed for _ in range(2)] == [True, False]
    assert await run.wait(timeout=5) == "failed"
    assert [task.state for task in await run.tasks()] == ["failed", "upstream_failed"]


async def test_a_write_without_the_lease_is_an_error(app, client, clock, harness):
    """Its machine slept past the lease, and somebody else has the task."""
    started, go_on = asyncio.Event(), asyncio.Event()

    @app.action
    async def sleepy() -> None:
        started.set()
        await go_on.wait()

    await client.enqueue(sleepy)
    async with app.processor(lease_seconds=30.0) as p:
        late = asyncio.ensure_future(p.process_once())
        await started.wait()
        await clock.advance(seconds=31)
        await harness.reap_once()
        go_on.set()
        with pytest.raises(LeaseLost) as refused:
            await late
    assert refused.value.code == "DAG_LEASE_CONTRACT_VIOLATION"


async def test_a_caller_that_is_cancelled_leaves_nothing_running(app, client, harness):
    started = asyncio.Event()

    @app.action
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    task = await client.enqueue(endless)
    async with app.processor(lease_seconds=30.0) as p:
        call = asyncio.ensure_future(p.process_once())
        await started.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await harness.task(task.task_id)).state != "running"


async def test_the_lease_lasts_as_long_as_asked_for(app, client, harness, engine):
    seen: list[int] = []

    @app.action
    async def hold() -> None:
        seen.append(await engine.database.fetchval(_LEASE))

    for options, seconds in (({"visibility_timeout_seconds": 45.0}, 45), ({"lease_seconds": 90.0}, 90)):
        await client.enqueue(hold)
        async with app.processor(**options) as p:
            await p.process_once()
        assert seen.pop() == seconds


_LEASE = "select extract(epoch from lease_expires_at - started_at)::int from holdfast.live where state = 'r'"


@pytest.mark.parametrize("options", [{"max_attempts": 0}, {"default_timeout_seconds": 0}, {"worker_id": "x" * 200}])
def test_options_that_cannot_be_are_refused(app, options):
    with pytest.raises(Invalid):
        app.processor(**options)


async def test_a_processor_must_be_open(app):
    with pytest.raises(Invalid):
        await app.processor().process_once()


async def test_work_of_other_actions_is_not_taken(app, harness):
    await harness.enqueue(a_task(action="other.thing"))
    async with app.processor() as p:
        assert not (await p.process_once()).processed


async def test_a_loop_of_calls_finishes_a_run_with_a_run_inside(app, client):
    thread = app.actions["shop.thread"]

    @app.flow
    def inner(order_id: int):
        return thread(order_id=order_id)

    @app.flow
    def outer(order_id: int):
        return thread.named("last")(order_id=inner(order_id=order_id))

    run = await client.start(outer, order_id=7)
    async with app.processor() as p:
        assert [(await p.process_once()).processed for _ in range(3)] == [True, True, False]
    assert (await run.show()).state == "completed"


async def test_what_is_due_or_lost_needs_no_other_process(app, client, clock, harness):
    retried = await client.enqueue("shop.charge", fails=True)
    delayed = await client.enqueue(app.actions["shop.thread"].options(delay="1h"), order_id=1)
    lost = await client.enqueue("shop.linger", seconds=0)
    harness.know("shop.linger")
    await harness.claim_task(lost.task_id)
    async with app.processor() as p:
        assert [(await p.process_once()).task_id for _ in range(2)] == [retried.task_id, None]
        await clock.advance("1h")
        came = {(await p.process_once()).task_id for _ in range(3)}
    assert came == {retried.task_id, delayed.task_id, lost.task_id}


async def test_an_action_with_a_launcher_runs_here_too(app, client):
    app.action(name="apart", launcher="subprocess")(lambda: 7)
    task = await client.enqueue(app.actions["shop.apart"])
    async with app.processor() as p:
        assert (await p.process_once()).task_id == task.task_id
    assert await task.result(timeout=5) == 7


REFUSE = """
create function holdfast.refuse() returns trigger language plpgsql as
  $$ begin raise exception 'not while the auditors are here'; end $$;
create trigger refuse before {change} on holdfast.live for each row {when} execute function holdfast.refuse();
"""
REFUSALS = {
    "DAG_DISPATCH_ENQUEUE_RETRY_FAILED": ("shop.charge", REFUSE.format(change="update", when="when (new.state = 'w')")),
    "DAG_DISPATCH_DEAD_LETTER_ENQUEUE_FAILED": ("shop.hopeless", REFUSE.format(change="delete", when="")),
}


@pytest.mark.parametrize("code", REFUSALS)
async def test_an_end_that_the_database_refuses_to_record_changed_nothing_and_is_reported_again(
    app, client, harness, code
):
    app.action(name="hopeless", max_retries=0)(no_luck)
    action, script = REFUSALS[code]
    task = await client.enqueue(action, fails=True)
    database = harness.engine.database
    async with app.processor() as p, database.session() as session:
        await session.execute(script)
        with pytest.raises(DispatchFailed, match="nothing changed: not while the auditors are here") as failed:
            await p.process_once()
        assert (failed.value.code, (await harness.task(task.task_id)).state) == (code, "running")
        await session.execute("drop trigger refuse on holdfast.live")
        await p.process_once()
    assert (await harness.task(task.task_id)).state in ("waiting", "failed")


async def test_what_waits_for_an_end_that_is_refused_is_not_let_go(app, client, harness):
    thread = app.actions["shop.thread"]

    @app.flow
    def chain(order_id: int):
        return thread.named("last")(order_id=thread(order_id=order_id))

    run = await client.start(chain, order_id=7)
    async with app.processor() as p, harness.engine.database.session() as session:
        await session.execute(REFUSE.format(change="insert", when=""))
        with pytest.raises(DispatchFailed) as failed:
            await p.process_once()
    assert failed.value.code == "DAG_DISPATCH_ENQUEUE_DOWNSTREAM_FAILED"
    assert [task.state for task in await run.tasks()] == ["running", "blocked"]


async def no_luck(fails: bool = True) -> None:
    raise ConnectionResetError("connection reset by peer")
