"""The examples of docs/flows.md run as they stand, and its table of codes is the whole truth."""

from __future__ import annotations

import ast
import asyncio
import re
import sys
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.authoring.flow.yaml_flow import parse_flow
from holdfast.authoring.loader import load_app
from holdfast.cli.main import cli
from holdfast.testing.clock import DatabaseClock
from holdfast.testing.idle import run_until_idle

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "flows.md").read_text()
SOURCE = ROOT / "src" / "holdfast"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def shop(tmp_path, holdfast_url):
    """The file that the page shows in pieces."""
    path = tmp_path / "docs_flows_shop.py"
    path.write_text("\n\n".join(blocks("python")))
    app = load_app(f"{path}:app")
    app.configure(hf.Settings(url=holdfast_url))
    return app


async def finished(run: hf.Run, app: hf.App, url: str, clock: DatabaseClock):
    await run_until_idle(app, url, clock=clock)
    return await run.result(timeout=20)


async def test_the_ten_lines_run_and_print_what_the_page_shows(shop, holdfast_url, clock, capsys):
    module = sys.modules[shop.actions["shop.extract"].function.__module__]
    running = asyncio.create_task(module.main())
    while not running.done():
        await run_until_idle(shop, holdfast_url, clock=clock)
    await running
    shown = PAGE.partition("asyncio.run(shop.main())'\n")[2].partition("```")[0]
    assert capsys.readouterr().out == shown


async def test_conditions_run_as_described(shop, holdfast_url, clock):
    async with shop.client() as client:
        run = await client.start("shop.careful", day="monday")
        assert await finished(run, shop, holdfast_url, clock) == "monday"
        states = {task.node: task.state for task in await run.tasks()}
        assert (states["small"], states["large"], states["loud"]) == ("completed", "skipped", "skipped")


async def test_maps_inner_flows_and_waits_run_as_described(shop, holdfast_url, clock):
    async with shop.client() as client:
        run = await client.start("shop.release", day="monday")
        await run_until_idle(shop, holdfast_url, clock=clock)
        await client.signal("paid", {"by": "card"}, key="monday")
        await run.approve("ship")
        assert await finished(run, shop, holdfast_url, clock) == {"total": 21, "message": "card"}


def test_the_yaml_is_the_same_flow(shop):
    [written] = blocks("yaml")
    assert parse_flow(written.encode(), file="x").digest() == shop.flows["shop.nightly"].definition.digest()


def test_the_drawing_is_what_the_command_draws(shop, tmp_path):
    from click.testing import CliRunner

    ran = CliRunner().invoke(cli, ["flow", "graph", "nightly", "--app", f"{tmp_path}/docs_flows_shop.py:app"])
    shown = PAGE.partition("$ holdfast flow graph nightly --app shop.py:app\n")[2].partition("```")[0]
    assert [line.rstrip() for line in ran.stdout.splitlines()] == shown.splitlines()


def test_every_code_of_a_refusal_is_in_the_table():
    """Codes as they stand in the code that refuses definitions; those of a run that is under way are elsewhere."""
    listed = set(re.findall(r"`((?:DAG_VALIDATION|flow|action)_\w+)`", PAGE.partition("| Code |")[2]))
    files = [
        *(SOURCE / "authoring/flow").glob("*.py"),
        *SOURCE.glob("engine/lifecycle/runs/flow_snapshots.py"),
        SOURCE / "core/flows/graph.py",
    ]
    files += [
        SOURCE / "core/flows" / f"{name}.py" for name in ("graph_check", "node_check", "input_builder", "known_ports")
    ]
    found: set[str] = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(r"^DAG_VALIDATION_[A-Z_]+[A-Z]$", node.value))
    assert found - listed == set()
