"""The one import direction, where SQL and time live, and how large a file may grow.

    core ◄ store ◄ wake ◄ dispatcher ◄ { client, worker, launch } ◄ desk ◄ api ◄ { testing, bench } ◄ cli
    core ◄ flow ◄ action: what people write down, apart from everything that stores and runs it
    apart, clock, errors, settings, wire, cron, own_loop: leaves that all may use
    executor, action, schedule, app, place, load: the doors between them

`wake` stands below the dispatcher: a bell carries hints and knows nothing but a connection, and the engine hands one
bell to every verb. That the core is pure is checked in tests/core, that every statement is used in tests/store.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import holdfast

# Read and parsed once, by one process of the run.
pytestmark = pytest.mark.xdist_group("sources")

ROOT = Path(holdfast.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
STATEMENTS = sorted((ROOT / "store").rglob("*.sql"))

LEAVES = {
    "apart",
    "clock",
    "errors",
    "garbage",
    "logs",
    "own_loop",
    "settings",
    "settings_option",
    "settings_sections",
    "settings_source",
    "wire",
    "cron",
}
REPLAYED = {
    "worker.attempts",
    "worker.beside",
    "worker.executed",
    "worker.governed",
    "worker.ledger",
    "worker.threads",
    "worker.writing",
}
"""What a replay runs as a worker does: the client's only look at the worker, and none of it knows the client."""
BELOW = {
    "apart": set(),
    "clock": {"errors"},
    "executor": {"errors", "worker.executed"},
    "errors": set(),
    "settings_option": {"errors"},
    "settings_sections": {"settings_option"},
    "settings_source": {"errors", "settings_option"},
    "settings": {"errors", "settings_option", "settings_sections", "settings_source"},
    "core": {"errors"},
    "own_loop": {"errors"},
    "logs": {"settings_sections"},
    "garbage": set(),
    "app_settings": {"errors", "net", "settings", "settings_option", "store"},
    "wire": {"errors", "core"},
    "store": {"errors", "core", "net"},
    "net": {"apart", "errors", "settings"},
    "webhooks": {"errors"},
    "reporters": {"core", "errors", "settings"},
    "wake": {"apart", "core", "errors", "settings", "store"},
    "place": {"errors", "net", "settings", "store"},
    "dispatcher": LEAVES
    | {"core", "cron", "errors", "net", "reporters", "settings", "store", "wake", "webhooks", "wire"},
    "yaml_text": {"core", "errors"},
    "flow": {"core", "errors", "wire", "yaml_text"},
    "action_input": set(),
    "action_signature": {"action_input", "core", "errors", "worker.context"},
    "action": {"action_signature", "clock", "core", "errors", "executor", "flow", "worker.context"},
    "action_options": {"action", "core", "errors"},
    "client": LEAVES
    | REPLAYED
    | {"action", "action_signature", "core", "dispatcher", "flow", "place", "store", "wake", "worker.context"},
    "app": {
        "action",
        "action_options",
        "action_signature",
        "client",
        "clock",
        "core",
        "cron",
        "errors",
        "executor",
        "flow",
        "schedule",
        "settings",
        "worker.context",
        "worker.once",
    },
    "packs": {"action", "action_options", "app", "core", "errors", "worker.context", "worker.descendants", "yaml_text"},
    "load": {"app", "errors", "packs"},
    "worker": LEAVES
    | {
        "action",
        "app",
        "app_settings",
        "core",
        "dispatcher",
        "executor",
        "flow",
        "load",
        "net",
        "place",
        "schedule",
        "store",
        "wake",
    },
    "cron": {"core", "errors"},
    "schedule": {"action", "core", "cron", "errors", "flow", "wire"},
    "testing": LEAVES | {"action", "app", "client", "core", "dispatcher", "flow", "place", "store", "wake", "worker"},
    "bench": LEAVES
    | {"action", "api", "app", "client", "core", "desk", "dispatcher", "load", "place", "store", "wake", "worker"},
    "cli": LEAVES
    | {
        "action",
        "api",
        "app",
        "app_settings",
        "bench",
        "client",
        "core",
        "desk",
        "dispatcher",
        "flow",
        "launch",
        "load",
        "net",
        "packs",
        "place",
        "store",
        "wake",
        "worker",
    },
    "__init__": LEAVES | {"action", "app", "client", "core", "executor", "flow", "packs", "reporters", "worker"},
    "desk": LEAVES | {"action", "client", "core", "dispatcher", "net", "store", "wake"},
    "api": LEAVES | {"client", "core", "desk", "dispatcher", "net", "store", "wake"},
    "launch": LEAVES | {"core", "dispatcher", "store", "wake", "worker.descendants"},
    "__main__": {"cli"},
}
FORBIDDEN_NAMES = {"utils", "common", "helpers", "base", "manager", "types", "misc"}
CLOCKS = re.compile(
    r"\b(now|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday)\(|\bcurrent_(timestamp|date|time)\b"
)
CLOCKS_ON_PURPOSE = {
    "0001_tasks.sql": {"statement_timestamp("},  # makes instant()
    "migrate.py": {"statement_timestamp("},  # its ledger is older than instant()
    "installation.sql": {"statement_timestamp("},  # checks that nobody replaced it
    "checkup.sql": {"clock_timestamp(", "statement_timestamp("},  # compares the clocks there are
}
SQL = re.compile(r"\s*(select|insert into|update|delete from|with \w+ as|create|alter|drop|truncate)\s", re.IGNORECASE)
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def part_of(path: Path) -> str:
    """The package, or module beside the packages, that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


def imported(path: Path) -> set[str]:
    """What a file imports from Holdfast, without the leading `holdfast.`."""
    names: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "holdfast":
            names |= {f"holdfast.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    ours = {name.removeprefix("holdfast.") for name in names if name.startswith("holdfast.")}
    return {name for name in ours if not name.startswith("__")}


def strings(path: Path) -> list[str]:
    """Every string of a file that is not a docstring."""
    skipped = {id(node.value) for node in nodes_of(path) if isinstance(node, ast.Expr)}
    constants = [node for node in nodes_of(path) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [node.value for node in constants if id(node) not in skipped]


def offenders(paths: Iterable[Path], wrong: Callable[[Path], object]) -> dict[str, object]:
    """What is wrong, by file: one test over hundreds of files takes a hundredth of the time of one test for each."""
    return {name_of(path): found for path in paths if (found := wrong(path))}


def test_a_module_imports_only_what_lies_below_it():
    def wrong(path: Path) -> list[str]:
        allowed = BELOW[part_of(path)] | {part_of(path)}
        return [name for name in imported(path) if not {name, name.split(".")[0]} & allowed]

    assert not offenders(MODULES, wrong)


def test_nothing_lies_below_itself():
    # An action names the type of its first parameter; the context it names imports nothing of the worker's.
    aside = REPLAYED | {"worker.context", "worker.descendants", "worker.once"}
    graph = {part: below - aside for part, below in BELOW.items()}
    TopologicalSorter(graph).prepare()
    assert not imported(ROOT / "worker" / "context.py")
    assert not imported(ROOT / "worker" / "descendants.py")


def test_what_the_app_opens_of_the_worker_does_not_import_the_app():
    seen, left = set(), {"worker.once", *REPLAYED}
    while left:
        name = left.pop()
        path = ROOT / f"{name.replace('.', '/')}.py"
        seen.add(name)
        left |= {one for one in imported(path) if one.startswith(("worker", "app", "client", "load"))} - seen
    assert not {"app", "load"} & seen and not any(one.startswith("client") for one in seen)


def test_sql_asks_only_instant_for_the_time():
    def wrong(path: Path) -> set[str]:
        code = "\n".join(line.partition("--")[0] for line in path.read_text().splitlines())
        return {match.group() for match in CLOCKS.finditer(code)} ^ CLOCKS_ON_PURPOSE.get(path.name, set())

    assert not offenders(STATEMENTS, wrong)


def test_python_asks_no_other_clock_of_the_database():
    def wrong(path: Path) -> set[str]:
        asked = {match.group() for text in strings(path) if SQL.match(text) for match in CLOCKS.finditer(text)}
        return asked - CLOCKS_ON_PURPOSE.get(path.name, set())

    assert not offenders((path for path in MODULES if part_of(path) not in ("bench", "testing")), wrong)


def test_only_the_store_knows_sql():
    def wrong(path: Path) -> list[str]:
        return [text for text in strings(path) if SQL.match(text) and re.search(r"\bholdfast\.", text)]

    assert not offenders((path for path in MODULES if part_of(path) not in ("store", "testing", "bench")), wrong)


def test_a_file_is_short_and_named_for_a_concept():
    assert not offenders([*MODULES, *STATEMENTS], lambda path: len(path.read_text().splitlines()) > FILE_LINES_MAX)
    assert not offenders(MODULES, lambda path: path.stem in FORBIDDEN_NAMES)


def test_a_function_fits_on_a_page():
    def wrong(path: Path) -> list[str]:
        functions = [n for n in nodes_of(path) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        return [one.name for one in functions if one.end_lineno - one.lineno >= FUNCTION_LINES_MAX]

    assert not offenders(MODULES, wrong)


def test_an_answer_of_the_desk_names_fields_and_leaves_options_to_the_shell():
    spoken = [*(ROOT / "desk").glob("*.py"), ROOT / "core" / "limits.py"]
    assert not [
        f"{path.name}: {line.strip()}"
        for path in spoken
        for line in path.read_text().splitlines()
        if re.search(r"--[a-z]", line) and "holdfast " not in line
    ]


def test_the_front_page_of_a_package_is_empty():
    fronts = [path for path in ROOT.rglob("__init__.py") if path.parent != ROOT]
    assert fronts and not offenders(fronts, lambda path: path.read_text() != "")


def test_a_module_says_what_it_is():
    written = [path for path in MODULES if path.read_text()]
    assert not offenders(written, lambda path: not ast.get_docstring(tree_of(path)))
