"""Statements of long lists look at a bounded part of a long history, also behind the tenants' wall.

What each node of a plan read is counted where the history is ten times as long as any bound: a statement that passes
over a whole table, because nothing matches or because an index may not be used behind the wall, is found out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from holdfast.client.client import Client
from holdfast.engine.effects.gate import effect_page
from holdfast.engine.engine import Engine
from holdfast.engine.queries.dead_letters import letter_page
from holdfast.engine.queries.pages import BY_INDEX
from holdfast.engine.queries.runs import run_page
from holdfast.engine.queries.tasks import task_page
from holdfast.operations.context import OperationContext, perform
from holdfast.operations.operation import Operation
from holdfast.settings.settings import Settings
from holdfast.store.statements import sql
from holdfast.testing.run_coroutine import run_coroutine
from holdfast_bench.app import app
from holdfast_bench.arena import Arena
from holdfast_bench.history import History, fill_history
from holdfast_bench.neighbours import FEW_TAG, ROWS
from holdfast_bench.questions import list_operations, questions

TASKS = 20_000
BOUND = 500
READ_MAX = 2_000
"""Rows one node may read: the bound, a page or two, and what is short by nature (lanes, workers)."""
LAST = 2**63 - 1
HELD = ["r", "v", "w"]
FIRST = 10_000_000_000
"""Where the block begins that has the history: the one before ended when there came a second tenant."""
BOUNDS = (BOUND, FIRST, HELD, 100)
WALL = "set local role holdfast_tenant; set local holdfast.tenant_id = '{}'"
TENANTS = ("large", "few", "nobody")
"""The one with the history, one with three rows of each kind that are older, one with nothing."""
READ_BY_INDEX = ("find_tasks", "find_nodes", "list_runs", "dead_groups")

CASES: list[tuple[str, tuple[Any, ...]]] = [
    ("find_tasks", (1, None, None, None, LAST, 50, *BOUNDS)),
    ("find_tasks", (1, None, [0], None, LAST, 50, *BOUNDS)),
    ("find_tasks", (1, None, None, "nothing", LAST, 50, *BOUNDS)),
    ("find_tasks", (1, ["completed"], [0], None, FIRST + 10_000, 50, *BOUNDS)),
    ("find_tasks", (1, ["failed"], [0], None, LAST, 50, *BOUNDS)),
    ("find_nodes", (1, None, None, None, LAST, 50, BOUND, 20, FIRST)),
    ("find_nodes", (1, ["canceled"], [0], None, LAST, 50, BOUND, 20, FIRST)),
    ("list_runs", (1, None, None, None, LAST, 50, 20, BOUND)),
    ("list_runs", (1, None, None, "nothing", LAST, 50, 20, BOUND)),
    ("list_runs", (1, ["completed"], [0], None, LAST, 50, 20, BOUND)),
    ("list_dead_letters", (1, ["retrying"], None, None, LAST, 50, None, False, BOUND, True)),
    ("list_dead_letters", (1, None, "nothing", None, LAST, 50, None, False, BOUND, False)),
    ("list_dead_letters", (1, ["open"], "fault7", None, LAST, 50, None, False, None, True)),
    ("list_effects", (1, None, "refused", 50, None, BOUND)),
    ("list_effects", (1, None, None, 50, None, BOUND)),
    ("list_audit", (1, 3_000, "nobody", None, None, None, None, 50, 2_500)),
    ("dead_groups", (1, 1_000, BOUND, 1_000, BOUND)),
    ("busy_lanes", (1,)),
    ("held_counts", (1, BOUND)),
    ("ended_counts", (1, BOUND)),
    ("blocked_counts", (1, 100, 100)),
]
IN_FUNCTIONS: list[tuple[str, tuple[Any, ...]]] = [
    ("completed_counts", (1, BOUND)),
    ("uncounted_events", (BOUND,)),
    ("counting_pays", (100, BOUND)),
    ("queued_counts", ([5, 6, 7], 50)),
    ("block_of", (1, LAST)),
]
FOR_TENANT = {name for name, _ in CASES} | {"completed_counts", "block_of"}
BESIDE = [operation for operation in list_operations() if not operation.path_fields]
READ_BESIDE_MAX = 900
"""Rows all statements of such a list may read: a look at what is newest of all, and the little it has."""
SHORT = {"worker.list": 2_100, "campaign.list": 2_100, "launch.list": 1_500, "queue.list": 1_500}
"""What these look at is short by nature: two thousand workers and campaigns, a thousand launches and lanes."""
PAGES_BESIDE_MAX = 700
"""Pages a list of a small tenant may touch: a look at what is newest of all, and the little it has."""
_ROWS_READ = """
select (select coalesce(sum(seq_tup_read), 0) from pg_stat_user_tables where schemaname = 'holdfast')
  + (select coalesce(sum(idx_tup_read), 0) from pg_stat_user_indexes where schemaname = 'holdfast')
"""
_IS_ALONE = """
select not exists (
  select from pg_stat_activity a
  where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
)
"""
PAGES_MAX = 60
"""Pages a statement may touch whose work is in functions, where no plan shows it: far fewer than any long table has."""


class Filled(NamedTuple):
    """A database with a long history of the first tenant, and what was written."""

    arena: Arena
    written: History

    def tenant_id(self, whose: str) -> int:
        return {"large": 1, "few": self.written.few, "nobody": self.written.nobody}[whose]


async def filled(url: str) -> Filled:
    app.configure(Settings(url=url))
    arena = Arena(url=url, database="", server={})
    async with app.client() as client:
        return Filled(arena, await fill_history(arena, client, tasks=TASKS, queued=TASKS))


@pytest.fixture(scope="module")
def history(holdfast_databases) -> Iterator[Filled]:
    url = run_coroutine(holdfast_databases.create())
    yield run_coroutine(filled(url))
    run_coroutine(holdfast_databases.drop(url))


def read(node: dict[str, Any]) -> Iterator[tuple[float, str]]:
    """How many rows each scan of a table read over all its loops, and how."""
    if "Relation Name" in node:
        passed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        yield (node["Actual Rows"] + passed) * node["Actual Loops"], f"{node['Node Type']} {node['Relation Name']}"
    for child in node.get("Plans", ()):
        yield from read(child)


async def planned(filled: Filled, whose: str, name: str, asked: tuple[Any, ...]) -> dict[str, Any]:
    """What a statement did behind the wall of a tenant, when everything it reads was in memory."""
    tenant_id = filled.tenant_id(whose)
    asked = (tenant_id, *asked[1:]) if name in FOR_TENANT else asked
    explained = f"explain (analyze, buffers, format json, timing off) {sql(name)}"
    async with filled.arena.connection() as connection, connection.transaction():
        await connection.execute("select 1" if name == "counting_pays" else WALL.format(tenant_id))
        await connection.execute(BY_INDEX if name in READ_BY_INDEX else "select 1")
        await connection.fetchval(explained, *asked)
        found = await connection.fetchval(explained, *asked)
    plan: dict[str, Any] = json.loads(found)[0]["Plan"]
    return plan


def touched(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.representative(one_in=4)
@pytest.mark.xdist_group("looks")
@pytest.mark.parametrize("whose", TENANTS)
@pytest.mark.parametrize(("name", "asked"), CASES, ids=lambda one: one if isinstance(one, str) else str(one[1:5]))
async def test_a_list_reads_no_more_than_its_bound(
    history: Filled, whose: str, name: str, asked: tuple[Any, ...]
) -> None:
    plan = await planned(history, whose, name, asked)

    most = max(read(plan))
    assert most[0] <= READ_MAX, most
    assert whose == "large" or touched(plan) <= PAGES_BESIDE_MAX


@pytest.mark.xdist_group("looks")
@pytest.mark.parametrize("whose", TENANTS)
@pytest.mark.parametrize(("name", "asked"), IN_FUNCTIONS, ids=lambda one: one if isinstance(one, str) else "")
async def test_a_function_touches_few_pages(history: Filled, whose: str, name: str, asked: tuple[Any, ...]) -> None:
    assert touched(await planned(history, whose, name, asked)) <= PAGES_MAX


@pytest.mark.xdist_group("looks")
@pytest.mark.parametrize("whose", ["few", "nobody"])
@pytest.mark.parametrize("operation", BESIDE, ids=lambda operation: operation.name)
async def test_lists_of_a_small_tenant_pass_over_nothing_of_a_large_one(
    history: Filled, whose: str, operation: Operation[Any, Any]
) -> None:
    async with Engine(history.arena.url, Settings(), sessions_max=1) as engine:
        context = OperationContext(Client.over(engine.of(history.tenant_id(whose))), "somebody")
        while not await engine.database.fetchval(_IS_ALONE):
            """Who was here before has yet to say what it read."""
        for asked in questions(history.written)[operation.name]:
            before = await rows_read(engine)
            await perform(operation, context, msgspec.convert(asked, operation.request))
            most = SHORT.get(operation.name, READ_BESIDE_MAX)
            assert await rows_read(engine) - before <= most, asked


async def rows_read(engine: Engine) -> int:
    """How many rows and index entries of its tables this session has read so far."""
    await engine.database.fetch("select pg_stat_force_next_flush()")
    return int(await engine.database.fetchval(_ROWS_READ))


@pytest.mark.xdist_group("looks")
async def test_the_first_page_of_a_small_tenant_shows_all_it_has(history: Filled) -> None:
    few = history.written.few
    async with Engine(history.arena.url, Settings()) as engine:
        database = engine.of(few).database
        for asked in ({}, {"tag": FEW_TAG}, {"queue": "small"}):
            rows, _ = await task_page(database, few, **asked)
            assert Counter(row.state for row in rows) == {
                "queued": 6,
                "running": 3,
                "completed": 3,
                "failed": 3,
                "blocked": 1,
            }, asked
        for state in ("queued", "running", "completed", "failed"):
            rows, _ = await task_page(database, few, states=[state])
            assert {row.state for row in rows} == {state}
        runs, _ = await run_page(database, engine.catalog, few)
        letters, _ = await letter_page(database, few)
        effects, _ = await effect_page(database, few)
        assert (len(runs), len(letters), len(effects)) == (ROWS, ROWS, ROWS)
