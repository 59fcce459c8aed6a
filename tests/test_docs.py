"""What the docs name exists, what they show runs, and where they link leads somewhere."""

from __future__ import annotations

import ast
import asyncio
import re
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import asyncpg
import pytest
from tests.by_sql import declare

import holdfast as hf
from holdfast.authoring.loader import load_app
from holdfast.cli.main import cli
from holdfast.settings.settings import options
from holdfast.settings.sources import LAUNCH_VARIABLES
from holdfast.store.statements import statements_in
from holdfast.testing.clock import DatabaseClock
from holdfast.testing.idle import run_until_idle

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))
REFERENCE = DOCS / "reference"
"""Pages that `make docs` builds; tests/test_generated_docs.py is about them."""
PAGES = sorted([*ROOT.glob("*.md"), *(page for page in DOCS.rglob("*.md") if REFERENCE not in page.parents)])
README = (ROOT / "README.md").read_text()

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(r"`((?:src|tests|docs|tools|examples)/[\w./-]*)`")
VARIABLE = re.compile(r"\bHOLDFAST_[A-Z_]+\b")
HOP = re.compile(r"^- `(src/holdfast/[\w./]+)` · (.+)$", re.MULTILINE)
HEADINGS = ["Context", "Choice", "What we gave up", "When to revisit"]
COMMAND = re.compile(r"(?:^\$ |`)holdfast ([a-z]+)(?: ([a-z]+))?", re.MULTILINE)

# Folders of somebody's machine, and hosts that packages come from.
MACHINE = re.compile(r"(?<![\w.])/(?:work/|Users/|home/(?!me\b))\w|(?:pypi|pythonhosted|npmjs|artifactory)\.\w+", re.I)


def ids(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def prose(path: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """The places inside a page that a link may name, as code hosts name them."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def names_in(path: Path) -> set[str]:
    """What a file defines: functions, classes and their members; in SQL statements, tables, views and functions."""
    text = path.read_text()
    if path.suffix == ".sql":
        made = r"^create (?:table|view|function|sequence) holdfast\.(\w+)"
        return {*re.findall(r"^-- name: (\w+)", text, re.MULTILINE), *re.findall(made, text, re.MULTILINE)}
    found: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{member.name}" for member in node.body if hasattr(member, "name")}
    return found


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_every_link_leads_somewhere(page):
    for link in LINK.findall(prose(page)):
        target, _, anchor = link.partition("#")
        if target.startswith(("https://", "http://")):
            continue
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(found), f"{link}: there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_every_file_that_a_page_names_exists(page):
    built = str(REFERENCE.relative_to(ROOT))
    missing = [path for path in PATH.findall(prose(page)) if not path.startswith(built) and not (ROOT / path).exists()]
    assert not missing


@pytest.mark.parametrize(("path", "names"), HOP.findall((DOCS / "tour.md").read_text()))
def test_every_function_of_the_tour_exists(path, names):
    wanted = set(re.findall(r"`([\w.]+)`", names))
    assert wanted
    assert wanted <= names_in(ROOT / path)


def test_the_tour_visits_every_hop():
    hops = re.findall(r"^## \d+\. (.+)$", (DOCS / "tour.md").read_text(), re.MULTILINE)
    assert hops[:9] == ["Enqueue", "Store", "Wake", "Claim", "Execute", "Heartbeat", "Settle", "Retry", "Reap"]


@pytest.mark.parametrize("walk", ["One task", "One run of a flow", "One HTTP request"])
def test_each_walk_of_the_tour_is_short_and_its_files_exist(walk):
    (section,) = re.findall(rf"^## {walk}\n(.+?)^## ", (DOCS / "tour.md").read_text(), re.MULTILINE | re.DOTALL)
    steps = re.findall(r"^(\d+)\. `(src/holdfast/[\w./]+)`: ([^.]+(?:\.\w[^.]*)*)\.$", section, re.MULTILINE)
    numbered = re.findall(r"^\d+\. ", section, re.MULTILINE)
    assert [int(number) for number, _, _ in steps] == list(range(1, len(numbered) + 1)), (
        "one file and one sentence each"
    )
    assert 10 <= len(steps) <= 20
    files = [file for _, file, _ in steps]
    assert len(set(files)) == len(files)
    assert not [file for file in files if not (ROOT / file).is_file()]
    for _, file, sentence in steps:
        called = re.match(r"`([\w.]+)`", sentence)
        assert called is None or file.endswith(".sql") or called[1] in names_in(ROOT / file), (file, sentence)


def test_every_invariant_that_the_docs_name_exists():
    known = {one.name for one in statements_in("invariants")}
    named = re.findall(r"invariants? ((?:`\w+`(?:, )?)+)", (DOCS / "guarantees.md").read_text())
    assert named
    assert {name for group in named for name in re.findall(r"`(\w+)`", group)} <= known


def known_variables() -> set[str]:
    """The environment variables that exist."""
    known = {name for option in options() for name in (option.variable, *option.aliases)}
    known |= set(LAUNCH_VARIABLES)
    return known | {
        "HOLDFAST_CONFIG",
        "HOLDFAST_PG_BIN",
        "HOLDFAST_PG_USER",
        "HOLDFAST_TEST_URL",
        "HOLDFAST_TEST_HOME",
    }


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_every_variable_that_a_page_names_exists(page):
    assert set(VARIABLE.findall(page.read_text())) <= known_variables()


@pytest.mark.parametrize("page", DECISIONS, ids=ids(DECISIONS))
def test_a_decision_has_its_four_headings(page):
    text = page.read_text()
    assert re.match(rf"# 0*{int(page.name[:4])}[.:] \S", text)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS


def test_every_page_is_in_the_index():
    index = (DOCS / "README.md").read_text()
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in LINK.findall(index)}
    missing = [page for page in PAGES if DOCS in page.parents and page not in linked and page.name != "README.md"]
    assert not ids(missing)


def test_every_dependency_has_its_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    asked += [one for extra in project["project"].get("optional-dependencies", {}).values() for one in extra]
    asked += [one for group in project["dependency-groups"].values() for one in group]
    names = {re.split(r"[<>=!~;\[ ]", one)[0] for one in asked}
    page = (DOCS / "decisions" / "dependencies.md").read_text()
    assert names == set(re.findall(r"^\|(?: `\w+` \|)? `([\w-]+)` \|", page, re.MULTILINE))


def test_every_command_that_the_docs_show_exists():
    for noun, verb in {match for page in PAGES for match in COMMAND.findall(page.read_text())}:
        context = cli.make_context("holdfast", [], resilient_parsing=True)
        command = cli.get_command(context, noun)
        assert command is not None, f"holdfast {noun}"
        if verb and hasattr(command, "get_command"):
            assert command.get_command(context, verb) is not None, f"holdfast {noun} {verb}"


@pytest.mark.parametrize("picture", sorted(DOCS.rglob("*.svg")), ids=lambda path: path.name)
def test_a_picture_is_sound_and_asks_nobody_else(picture):
    text = picture.read_text()
    tree = ElementTree.fromstring(text)
    assert tree.get("viewBox")
    assert tree.find("{http://www.w3.org/2000/svg}title") is not None
    assert "prefers-color-scheme: dark" in text
    assert not re.findall(r"(?:href|src)=[\"']?http", text)


@pytest.mark.slow("it costs as much as many others; test_the_page_of_the_audit_log_names_every_verb_there_is is fast")
def test_nothing_names_a_machine_or_a_registry():
    folders = [ROOT / name for name in ("src", "tests", "tools", "examples", "docs", ".ci", ".github")]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix not in (".pyc", ".png")]
    found = []
    for path in [*ROOT.glob("*.*"), ROOT / "Makefile", *files]:
        if path.is_file() and path.name not in (".git", Path(__file__).name):
            text = path.read_text(errors="ignore")
            found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in MACHINE.finditer(text)]
    assert not found


async def test_the_example_of_the_readme_runs(holdfast_url: str, clock: DatabaseClock, tmp_path: Path, capsys):
    example, shown = _block("python"), README.partition("$ python app.py\n")[2].splitlines()[0]
    path = tmp_path / "readme_app.py"
    path.write_text(example)
    app = load_app(f"{path}:app")
    app.configure(hf.Settings(url=holdfast_url))
    example_module = sys.modules[app.actions["shop.send_receipt"].function.__module__]
    running = asyncio.create_task(example_module.main())
    while not running.done():
        await run_until_idle(app, holdfast_url, clock=clock)
    await running
    assert capsys.readouterr().out.strip() == shown


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", DOCS / "operate.md", DOCS / "audit.md"], ids=lambda path: path.name
)
async def test_the_sql_of_the_docs_runs(page, engine, holdfast_url: str):
    await declare(engine, "shop.send_receipt")
    connection = await asyncpg.connect(holdfast_url)
    try:
        for block in re.findall(r"```sql\n(.*?)```", page.read_text(), re.DOTALL):
            await connection.execute(block)
    finally:
        await connection.close()


def test_the_page_of_the_audit_log_names_every_verb_there_is():
    """Verbs are spelled whole where changes are made, so that they can be found."""
    rows = re.findall(r"^\| (`.+?) \|", (DOCS / "audit.md").read_text(), re.MULTILINE)
    table = {verb.strip("`") for verbs in rows for verb in _code(verbs)}
    subjects = {verb.partition(".")[0] for verb in table}
    spelled, kinds_of_events = set(), {"task.started"}
    for path in [*(ROOT / "src/holdfast/engine").rglob("*.py"), *(ROOT / "src/holdfast/server/auth").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "verb":
                assert not isinstance(node.value, ast.JoinedStr), f"{path.name} puts a verb together"
            if isinstance(node, ast.Constant) and re.fullmatch(r"[a-z]+\.[a-z_]+", str(node.value)):
                spelled |= {node.value} if node.value.partition(".")[0] in subjects else set()
    assert spelled - kinds_of_events == table


def _block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found
    return found[1]


def _code(page: str) -> set[str]:
    return set(re.findall(r"`[^`]+`", page))
