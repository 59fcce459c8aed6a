"""Statements of long lists look at a bounded part of a long history, also behind the tenants' wall.

What each node of a plan read is counted where the history is ten times as long as any bound: a statement that passes
over a whole table, because nothing matches or because an index may not be used behind the wall, is found out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.bench.app import app
from holdfast.bench.arena import Arena
from holdfast.bench.history import fill_history
from holdfast.dispatcher.pages import BY_INDEX
from holdfast.settings import Settings
from holdfast.store.statements import sql
from holdfast.testing.apart import run_apart

TASKS = 20_000
BOUND = 500
READ_MAX = 2_000
"""Rows one node may read: the bound, a page or two, and what is short by nature (lanes, workers)."""
LAST = 2**63 - 1
HELD = ["r", "v", "w"]
FIRST = 0
LOOKS = (BOUND, FIRST, HELD, 100)
WALL = "set local role holdfast_tenant; set local holdfast.tenant_id = '1'"
READ_BY_INDEX = ("find_tasks", "find_nodes", "list_runs", "dead_groups")

CASES: list[tuple[str, tuple[Any, ...]]] = [
    ("find_tasks", (1, None, None, None, LAST, 50, *LOOKS)),
    ("find_tasks", (1, None, [0], None, LAST, 50, *LOOKS)),
    ("find_tasks", (1, None, None, "nothing", LAST, 50, *LOOKS)),
    ("find_tasks", (1, ["completed"], [0], None, 10_000, 50, *LOOKS)),
    ("find_tasks", (1, ["failed"], [0], None, LAST, 50, *LOOKS)),
    ("find_nodes", (1, None, None, None, LAST, 50, BOUND, 20, FIRST)),
    ("find_nodes", (1, ["canceled"], [0], None, LAST, 50, BOUND, 20, FIRST)),
    ("list_runs", (1, None, None, None, LAST, 50, 20, BOUND)),
    ("list_runs", (1, None, None, "nothing", LAST, 50, 20, BOUND)),
    ("list_runs", (1, ["completed"], [0], None, LAST, 50, 20, BOUND)),
    ("list_letters", (1, ["retrying"], None, None, LAST, 50, None, False, BOUND, True)),
    ("list_letters", (1, None, "nothing", None, LAST, 50, None, False, BOUND, False)),
    ("list_letters", (1, ["open"], "fault7", None, LAST, 50, None, False, None, True)),
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
    ("block_before", (LAST,)),
]
PAGES_MAX = 60
"""Pages a statement may touch whose work is in functions, where no plan shows it: far fewer than any long table has."""


async def filled(url: str) -> None:
    app.configure(Settings(url=url))
    async with app.client() as client:
        await fill_history(Arena(url=url, database="", server={}), client, tasks=TASKS, queued=TASKS)


@pytest.fixture(scope="module")
def history(holdfast_databases) -> Iterator[Arena]:
    url = run_apart(holdfast_databases.create())
    run_apart(filled(url))
    yield Arena(url=url, database="", server={})
    run_apart(holdfast_databases.drop(url))


def read(node: dict[str, Any]) -> Iterator[tuple[float, str]]:
    """How many rows each scan of a table read over all its loops, and how."""
    if "Relation Name" in node:
        passed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        yield (node["Actual Rows"] + passed) * node["Actual Loops"], f"{node['Node Type']} {node['Relation Name']}"
    for child in node.get("Plans", ()):
        yield from read(child)


@pytest.mark.xdist_group("looks")
@pytest.mark.parametrize(("name", "asked"), CASES, ids=lambda one: one if isinstance(one, str) else str(one[1:5]))
async def test_a_list_reads_no_more_than_its_bound(history: Arena, name: str, asked: tuple[Any, ...]) -> None:
    async with history.connection() as connection, connection.transaction():
        await connection.execute(f"{WALL}; {BY_INDEX if name in READ_BY_INDEX else 'select 1'}")
        found = await connection.fetchval(f"explain (analyze, format json, timing off) {sql(name)}", *asked)

    most = max(read(json.loads(found)[0]["Plan"]))
    assert most[0] <= READ_MAX, most


@pytest.mark.xdist_group("looks")
@pytest.mark.parametrize(("name", "asked"), IN_FUNCTIONS, ids=lambda one: one if isinstance(one, str) else "")
async def test_a_function_touches_few_pages(history: Arena, name: str, asked: tuple[Any, ...]) -> None:
    explained = f"explain (analyze, buffers, format json, timing off) {sql(name)}"
    async with history.connection() as connection, connection.transaction():
        await connection.execute("select 1" if name == "counting_pays" else WALL)
        await connection.fetchval(explained, *asked)
        found = await connection.fetchval(explained, *asked)

    plan = json.loads(found)[0]["Plan"]
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= PAGES_MAX
