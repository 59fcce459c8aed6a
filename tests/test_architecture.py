"""The one import direction, where SQL and time live, and how large a file may grow.

    errors < _internal < settings < net < core < {codec, protocol, store} < wakeups < engine < authoring < execution
    < {client, worker, launchers} < operations < server < {testing, cli}

A module imports its own package and what stands before it. `App` is the one exception: it opens clients and
processors, which it imports when asked for one. That the core is pure is checked in tests/core, that every statement
is used in tests/store.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest

import holdfast

# Read and parsed once, by one process of the run.
pytestmark = pytest.mark.xdist_group("sources")

ROOT = Path(holdfast.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
STATEMENTS = sorted((ROOT / "store").rglob("*.sql"))
WRITTEN = [path for path in MODULES if ROOT / "store" / "sql" not in path.parents]
"""The modules that people write; those of `store/sql` are generated from the SQL files."""

ORDER = (
    ("errors",),
    ("_internal",),
    ("settings",),
    ("net",),
    ("core",),
    ("codec", "protocol", "store", "webhooks"),
    ("wakeups",),
    ("engine",),
    ("authoring",),
    ("execution",),
    ("client", "worker", "launchers"),
    ("operations",),
    ("server",),
    ("testing", "cli"),
    ("__init__", "__main__"),
)
"""The packages, and the modules beside them, each after everything that it may import."""
RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}
OPENED_LATE = {"authoring/app.py": {"client", "worker"}}
"""What a module imports inside of functions, although it stands after it."""
FORBIDDEN_NAMES = {"utils", "common", "helpers", "manager", "types", "misc"}
CLOCKS = re.compile(
    r"\b(now|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday)\(|\bcurrent_(timestamp|date|time)\b"
)
CLOCKS_ON_PURPOSE = {
    "01_tenants.sql": {"statement_timestamp("},  # makes instant()
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


@cache
def for_types_only(path: Path) -> set[int]:
    """The imports that only a type checker follows."""
    blocks = [n for n in nodes_of(path) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    return {id(node) for block in blocks for node in ast.walk(block)}


def imported(path: Path) -> set[str]:
    """What a file imports from Holdfast, without the leading `holdfast.`."""
    names: set[str] = set()
    for node in nodes_of(path):
        if id(node) in for_types_only(path):
            continue
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


def test_a_module_imports_only_what_stands_before_its_package():
    def wrong(path: Path) -> list[str]:
        part = part_of(path)
        late = OPENED_LATE.get(name_of(path), set())
        parts = {name.split(".")[0] for name in imported(path)} - {part} - late
        return sorted(one for one in parts if RANK[one] >= RANK[part])

    assert not offenders(MODULES, wrong)


def test_what_is_opened_late_is_imported_inside_of_functions():
    for name, late in OPENED_LATE.items():
        at_import = [node for node in tree_of(ROOT / name).body if isinstance(node, ast.ImportFrom)]
        assert not [node.module for node in at_import if (node.module or "").split(".")[1:2] in [[one] for one in late]]


def names_imported_from(path: Path, module: str) -> set[str]:
    """The names that a file takes from one module, at import or inside of functions."""
    imports = [node for node in nodes_of(path) if isinstance(node, ast.ImportFrom) and node.module == module]
    return {alias.name for node in imports for alias in node.names}


def test_client_and_operations_leave_publishing_to_the_use_cases():
    callers = [path for path in MODULES if part_of(path) in ("client", "operations")]
    assert callers and not offenders(callers, lambda path: "engine.publish" in imported(path))


def test_outside_of_the_engine_tasks_are_enqueued_in_two_ways():
    module, ways = "holdfast.engine.lifecycle.tasks.enqueue", set()
    for path in MODULES:
        if part_of(path) != "engine":
            ways |= {name for name in names_imported_from(path, module) if name.startswith(("enqueue", "accept"))}
    assert ways == {"enqueue", "enqueue_in"}


def test_sql_asks_only_instant_for_the_time():
    def wrong(path: Path) -> set[str]:
        code = "\n".join(line.partition("--")[0] for line in path.read_text().splitlines())
        return {match.group() for match in CLOCKS.finditer(code)} ^ CLOCKS_ON_PURPOSE.get(path.name, set())

    assert not offenders(STATEMENTS, wrong)


def test_python_asks_no_other_clock_of_the_database():
    def wrong(path: Path) -> set[str]:
        asked = {match.group() for text in strings(path) if SQL.match(text) for match in CLOCKS.finditer(text)}
        return asked - CLOCKS_ON_PURPOSE.get(path.name, set())

    assert not offenders((path for path in MODULES if part_of(path) != "testing"), wrong)


def test_only_the_store_knows_sql():
    def wrong(path: Path) -> list[str]:
        return [text for text in strings(path) if SQL.match(text) and re.search(r"\bholdfast\.", text)]

    assert not offenders((path for path in MODULES if part_of(path) not in ("store", "testing")), wrong)


def test_a_file_is_short_and_named_for_a_concept():
    assert not offenders([*WRITTEN, *STATEMENTS], lambda path: len(path.read_text().splitlines()) > FILE_LINES_MAX)
    assert not offenders(MODULES, lambda path: path.stem in FORBIDDEN_NAMES)


def test_a_function_fits_on_a_page():
    def wrong(path: Path) -> list[str]:
        functions = [n for n in nodes_of(path) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        return [one.name for one in functions if one.end_lineno - one.lineno >= FUNCTION_LINES_MAX]

    assert not offenders(WRITTEN, wrong)


def test_an_answer_of_an_operation_names_fields_and_leaves_options_to_the_shell():
    spoken = [*(ROOT / "operations").glob("*.py"), ROOT / "core" / "values" / "bounds.py"]
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


def test_a_class_name_is_defined_once():
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name_of(path))
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}
