"""Pages look at a bounded part of a table: walked to the end, they still show everything once, in order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.core.flows import a_flow

from holdfast.core.tasks.outcome import Failed
from holdfast.engine import audit
from holdfast.engine.effects import gate
from holdfast.engine.limits import queues
from holdfast.engine.maintenance.retention import begin_today
from holdfast.engine.queries import counts, dead_letters, runs, tasks
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.testing.factories import (
    a_canceled_task,
    a_completed_task,
    a_failed_task,
    a_failure,
    a_retrying_task,
    a_running_task,
    a_task,
)

MAKERS = (a_completed_task, a_completed_task, a_failed_task, a_canceled_task, a_retrying_task, a_running_task)
FILTERS: list[dict[str, Any]] = [
    {},
    {"queue": "mail"},
    {"queue": "mail", "states": ["completed"]},
    {"states": ["failed", "canceled"]},
    {"states": ["queued"]},
    {"states": ["retrying", "running"]},
    {"tag": "red"},
    {"tag": "blue"},
]


@pytest.fixture
def narrow(monkeypatch):
    """Pages that look at hardly more than they show."""
    for module, names in (
        (tasks, ("SCAN_ROWS_MAX", "SCAN_ATTEMPTS_MAX", "SCAN_RUNS_MAX")),
        (runs, ("SCAN_OPEN_MAX", "SCAN_ROWS_MAX")),
        (audit, ("SCAN_ROWS_MAX",)),
        (gate, ("SCAN_ROWS_MAX",)),
        (dead_letters, ("LOOK_LETTERS",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, 1)


async def walk(page, cursor="before", **asked):
    """Every row of every page, and how many pages there were."""
    rows, pages, following = [], 0, None
    while pages == 0 or following is not None:
        found, following = await page(**asked, **{cursor: following}, limit=2)
        rows, pages = rows + found, pages + 1
    return rows, pages


async def a_mixed_history(harness):
    for queue in ("mail", "shop", "mail"):
        await harness.enqueue_many(a_task(queue=queue, tags=("red",)), [{}] * 2)
        for make in MAKERS:
            await make(harness, queue=queue)


@pytest.mark.parametrize("asked", FILTERS, ids=str)
async def test_pages_of_tasks_show_each_once_in_order(harness, engine, monkeypatch, narrow, asked):
    await a_mixed_history(harness)

    async def page(**given):
        return await tasks.task_page(engine.database, DEFAULT_TENANT_ID, **given)

    shown, pages = await walk(page, **asked)
    for name in ("SCAN_ROWS_MAX", "SCAN_ATTEMPTS_MAX", "SCAN_RUNS_MAX"):
        monkeypatch.setattr(tasks, name, 10_000)
    whole, rest = await tasks.task_page(engine.database, DEFAULT_TENANT_ID, **asked, limit=1_000)

    assert [row.task_id for row in shown] == [row.task_id for row in whole]
    assert rest is None and pages > len(whole) // 2


async def test_a_list_goes_on_past_pages_that_are_short(harness, engine, narrow):
    first = await a_completed_task(harness, queue="rare")
    await a_mixed_history(harness)

    assert [row.task_id for row in await tasks.list_tasks(engine.database, DEFAULT_TENANT_ID, queue="rare")] == [first]
    rows, following = await tasks.task_page(engine.database, DEFAULT_TENANT_ID, queue="rare", limit=2)
    assert rows == [] and following is not None


async def test_pages_of_letters_show_each_once_in_order(harness, engine, narrow):
    for _ in range(5):
        await a_failed_task(harness, queue="mail")

    async def page(**given):
        return await dead_letters.letter_page(engine.database, DEFAULT_TENANT_ID, **given)

    everything, _ = await walk(page)
    numbers = [int(row.dead_letter_id) for row in everything]
    assert len(numbers) == 5 and numbers == sorted(numbers, reverse=True)
    assert await walk(page, fingerprint="nothing") == ([], 3)
    # Open ones have an index of their own, and are not looked at.
    assert await walk(page, states=["resolved"]) == ([], 1)
    assert len((await walk(page, states=["open"], fingerprint=everything[0].fingerprint))[0]) == 5


async def test_pages_of_the_audit_log_show_each_row_once(harness, engine, narrow):
    await harness.enqueue(a_task(queue="mail"))
    for number in range(3):
        await queues.pause(engine, DEFAULT_TENANT_ID, "mail", actor=f"anna{number}", reason="x")
        await queues.resume(engine, DEFAULT_TENANT_ID, "mail", actor="bob", reason="x")

    async def page(**given):
        return await audit.audit_page(engine.database, DEFAULT_TENANT_ID, **given)

    rows, _ = await walk(page)
    assert len(rows) >= 6 and [row.seq for row in rows] == sorted((row.seq for row in rows), reverse=True)
    assert [row.actor for row in (await walk(page, verb="queue.pause"))[0]] == ["anna2", "anna1", "anna0"]


async def test_groups_of_letters_say_that_older_ones_were_not_counted(harness, engine, monkeypatch):
    for _ in range(3):
        await a_failed_task(harness, queue="mail")
    [group] = await dead_letters.dead_groups(engine.database, DEFAULT_TENANT_ID)
    assert (group.count, group.is_partial) == (3, False)
    monkeypatch.setattr(dead_letters, "LETTERS_LOOK_MAX", 2)
    [group] = await dead_letters.dead_groups(engine.database, DEFAULT_TENANT_ID)
    assert (group.count, group.is_partial) == (2, True)


async def test_queued_tasks_are_counted_to_a_bound_and_say_so(harness, engine, monkeypatch):
    await harness.enqueue_many(a_task(queue="mail"), [{}] * 5)
    await harness.enqueue(a_task(queue="shop"))
    monkeypatch.setattr(queues, "LISTED", replace(counts.LISTED, queued=4))
    views = await queues.list_queues(engine.database, DEFAULT_TENANT_ID)
    assert {view.name: (view.queued, view.partial) for view in views} == {"mail": (3, ("queued",)), "shop": (1, ())}


async def test_a_group_does_not_hide_an_older_one(harness, engine, monkeypatch):
    lease = await a_running_task(harness, queue="mail", max_retries=0)
    await harness.settle(lease, Failed(a_failure("no such customer")))
    for _ in range(3):
        await a_failed_task(harness, queue="mail")
    monkeypatch.setattr(dead_letters, "LETTERS_LOOK_MAX", 2)
    large, small = await dead_letters.dead_groups(engine.database, DEFAULT_TENANT_ID)
    assert (large.letters, large.count, large.is_partial) == (3, 1, True)
    assert (small.letters, small.count, small.is_partial) == (1, 1, False)


async def test_groups_behind_the_bound_are_there_too(harness, engine, monkeypatch):
    """Counting comes to its end in one group; those behind it in the index are found one by one."""
    for words, times in (("no such customer", 3), ("no such order", 2), ("no such price", 1)):
        for _ in range(times):
            lease = await a_running_task(harness, queue="mail", max_retries=0)
            await harness.settle(lease, Failed(a_failure(words)))
    whole = {group.fingerprint: group for group in await dead_letters.dead_groups(engine.database, DEFAULT_TENANT_ID)}
    assert sorted(group.count for group in whole.values()) == [1, 2, 3]
    for bound in range(1, 7):
        monkeypatch.setattr(dead_letters, "LETTERS_COUNT_MAX", bound)
        found = {
            group.fingerprint: group for group in await dead_letters.dead_groups(engine.database, DEFAULT_TENANT_ID)
        }
        assert found.keys() == whole.keys()
        for name, group in found.items():
            assert group == whole[name] or (group.letters <= whole[name].letters and group.is_partial)


async def test_nodes_do_not_hide_newer_tasks(harness, engine, clock):
    ids = []
    for _ in range(2):
        ids += [(await harness.enqueue(a_task())).task_id]
        await clock.advance(seconds=1)
        run_id = int(await harness.runs.start(a_flow("a>b")))
        ids += [str(run_id + 1), str(run_id + 2)]
        await clock.advance(seconds=1)

    async def page(**given):
        return await tasks.task_page(engine.database, DEFAULT_TENANT_ID, **given)

    assert [row.task_id for row in (await walk(page))[0]] == ids[::-1]
    assert [row.task_id for row in (await page(limit=10))[0]] == ids[::-1]


async def test_a_list_goes_on_from_day_to_day(harness, engine, clock):
    ids = []
    for _ in range(3):
        ids += [(await harness.enqueue(a_task())).task_id, str(int(await harness.runs.start(a_flow())) + 1)]
        for _ in range(2):
            await clock.advance("1d")
            await begin_today(engine.database)
    assert [row.task_id for row in await tasks.list_tasks(engine.database, DEFAULT_TENANT_ID)] == ids[::-1]
    rows, place = await tasks.task_page(engine.database, DEFAULT_TENANT_ID, limit=3)
    rest, _ = await tasks.task_page(engine.database, DEFAULT_TENANT_ID, before=tasks.TaskCursor.of(str(place)))
    assert [row.task_id for row in [*rows, *rest]] == ids[::-1]
