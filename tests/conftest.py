"""Every test that used a database ends with the invariants: whatever it did, the engine's promises must hold."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from tests import null_columns, one_session
from tests.skips import not_tried
from tests.waiting import eventually

from holdfast.engine.queries.verify import Verified, is_warning, verify
from holdfast.store.database import Database
from holdfast.store.statements import Statement, statements_in
from holdfast.testing.run_coroutine import run_coroutine

pytest_plugins = ["holdfast.testing.plugin", "tests.tiers"]

# Hundreds of processes are started here; none should compile the same modules again, whatever the environment says.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "bytecode"))

# A server's process gives memory back after each statement and gets it anew, page by page, for the next one, unless it
# may keep some: a twentieth of the suite. (These are glibc's names; elsewhere they mean nothing.)
os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(64 * 1024**2))
os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(64 * 1024**2))
os.environ.setdefault("MALLOC_TOP_PAD_", str(1024**2))

LOOKED_UP = frozenset({"tenant", "queue", "lane", "policy", "flow", "snapshot", "block", "standing"})
"""What is looked up from other tables: with nothing in any other that an invariant speaks of, it speaks of nothing."""
QUICKLY_PLANNED = {
    "enable_nestloop": "off",
    "enable_mergejoin": "off",
    "join_collapse_limit": "1",
    "from_collapse_limit": "1",
    "jit": "off",
}
"""A handful of rows is joined in any order: to look for the best one takes longer than all the joins."""
_RELATION = re.compile(r"\bholdfast\.(\w+)\b(?!\()")
_LEADING = re.compile(r"\bfrom (?:only )?holdfast\.(\w+)\b(?!\()")
_NESTED = re.compile(r"\([^()]*\)")
_NEVER_WRITTEN = """
select regexp_replace(c.relname, '_[0-9]+$', '') as name
from pg_class c
where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'r'
group by 1
having sum(pg_relation_size(c.oid)) = 0
"""


@pytest.fixture
def needs_superuser() -> None:
    """Skip what only a superuser may do, on a server where the tests have an ordinary role (`make stock`)."""
    if not _is_superuser():
        pytest.skip("the tests have an ordinary role here; this one does what only a superuser may")


@pytest.fixture(autouse=True)
def _heed_superuser_marker(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("superuser") is not None:
        request.getfixturevalue("needs_superuser")


@cache
def _is_superuser() -> bool:
    url = os.environ.get("HOLDFAST_TEST_URL")
    if url is None:
        return True  # the embedded server's own

    async def look() -> bool:
        connection = await asyncpg.connect(url)
        try:
            return bool(await connection.fetchval("select rolsuper from pg_roles where rolname = current_user"))
        finally:
            await connection.close()

    return run_coroutine(look())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell which tests waited in vain for a program, and how to get it."""
    skipped = terminalreporter.stats.get("skipped", [])
    lines = list(not_tried(one.longrepr[2] for one in skipped if isinstance(one.longrepr, tuple)))
    if lines:
        terminalreporter.section("not tried here", sep="-", yellow=True)
    for line in lines:
        terminalreporter.line(line)


@pytest.fixture(scope="session", autouse=True)
def _watched_pools():
    with pytest.MonkeyPatch.context() as monkeypatch:
        one_session.watch_pools(monkeypatch)
        yield


@pytest.fixture(autouse=True)
def _one_session_at_a_time(request):
    """A test in which a task holds a pooled session and asks the same pool for another fails."""
    one_session.violations.clear()
    yield
    found, one_session.violations[:] = list(one_session.violations), []
    assert not found or request.node.get_closest_marker("interposes") is not None, found[0]


@pytest.fixture(scope="session", autouse=True)
def _watched_results():
    with pytest.MonkeyPatch.context() as monkeypatch:
        null_columns.watch_results(monkeypatch)
        yield


@pytest.fixture(autouse=True)
def _no_undeclared_nulls():
    """A test in which a statement returns null where its signature excludes it fails."""
    null_columns.violations.clear()
    yield
    found, null_columns.violations[:] = list(null_columns.violations), []
    assert not found, found[0]


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[..., Awaitable[Any]]:
    return eventually


@cache
def promises() -> list[tuple[Statement, frozenset[str]]]:
    """The invariants, each with tables of which one must have rows for it to find anything."""
    return [(one, needed_by(one.text)) for one in statements_in("invariants") if not is_warning(one)]


def needed_by(statement: str) -> frozenset[str]:
    """The table that each select of a statement begins with: rows come from there, whatever is joined to it. Where that
    is no table, or rows may come from elsewhere, all that it speaks of besides what is looked up."""
    outer = re.sub(r"--.*", "", statement)
    while (inner := _NESTED.sub("", outer)) != outer:
        outer = inner
    if "having" in outer and "group by" not in outer:
        return frozenset()  # a count of nothing is a row too
    leading = [_LEADING.search(" ".join(select.split())) for select in re.split(r"\bunion\b", outer)]
    if re.search(r"\b(with|full|right|lateral)\b", outer):
        leading = [None]
    if any(found is None or found[1] in LOOKED_UP for found in leading):
        return frozenset(_RELATION.findall(statement)) - LOOKED_UP
    return frozenset(found[1] for found in leading if found is not None)


async def broken_in(url: str) -> list[str]:
    """The invariants that do not hold."""
    connection = await asyncpg.connect(url, server_settings=QUICKLY_PLANNED)
    try:
        if await _keeps_all(connection):
            return []
    finally:
        await connection.close()
    # Asked again for its evidence.
    return [str(one) for one in (await verified(url)).violations] or ["an invariant did not hold, and does now"]


async def _keeps_all(connection: Any) -> bool:
    """Whether every invariant holds. Those about tables nobody ever wrote to are left out, and the others sent at once,
    in a way that fails where one is broken: most tests use a part of the engine, and what takes the time is to prepare
    each question, not to answer it."""
    empty = {row["name"] for row in await connection.fetch(_NEVER_WRITTEN)}
    asked = [
        f"select 1 / (case when exists (\n{one.text}\n) then 0 else 1 end)"
        for one, relations in promises()
        if not relations or not relations <= empty
    ]
    try:
        await connection.execute(";\n".join(asked))
    except asyncpg.DivisionByZeroError:
        return False
    return True


async def verified(url: str) -> Verified:
    database = await Database(url, sessions_max=1).open()
    try:
        return await verify(database)
    finally:
        await database.close()


_KEPT_ALL = pytest.StashKey[bool]()
"""Whether the engine of a test found all invariants kept."""


@pytest_asyncio.fixture
async def holdfast_engine(request, holdfast_engine):
    """The engine, which asks for the invariants itself where nobody else uses the database: it knows the tables by now,
    a new session would read the whole catalog first."""
    yield holdfast_engine
    if request.node.get_closest_marker("breaks_invariants") is None and _is_alone(request.node):
        async with holdfast_engine.database.session() as session:
            await session.execute(";".join(f"set {name} = {value}" for name, value in QUICKLY_PLANNED.items()))
            request.node.stash[_KEPT_ALL] = await _keeps_all(session.connection)


def _is_alone(test: Any) -> bool:
    """Whether the engine is all that uses the test's database."""
    fixtures = test._fixtureinfo
    users = {name for name, made in fixtures.name2fixturedefs.items() if "holdfast_url" in made[-1].argnames}
    return users <= {"holdfast_engine", "holdfast_url"} and "holdfast_url" not in fixtures.argnames


@pytest.fixture
def holdfast_url(request, holdfast_url):
    """A database of the test's own, verified at the end unless the test breaks it on purpose."""
    yield holdfast_url
    if request.node.get_closest_marker("breaks_invariants") is None and not request.node.stash.get(_KEPT_ALL, False):
        broken = run_coroutine(broken_in(holdfast_url))
        assert not broken, "\n".join(broken)
