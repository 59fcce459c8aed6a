"""The example apps run as their readers would run them, on the database of the test."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from holdfast.settings.settings import Settings
from holdfast.testing.idle import run_until_idle

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def loaded(name: str):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("orders", "order 7: 2 boxes, picked up by Ada"),
        ("coder", "grace"),
    ],
)
async def test_an_example_runs_to_its_end(name, said, holdfast_url, capsys):
    module = loaded(name)
    module.app.configure(Settings(url=holdfast_url))
    await module.main()
    assert said in capsys.readouterr().out


async def test_an_order_of_nothing_in_stock_is_refunded_and_ends(holdfast_url):
    module = loaded("orders")
    module.app.configure(Settings(url=holdfast_url))
    async with module.app.client() as client:
        run = await client.start(module.fulfil, order_id=8, items=["milk"])
        await run_until_idle(module.app, client.engine)
        assert await run.wait(timeout=30) == "completed"
        states = {task.node: task.state for task in await run.tasks()}
    assert {node for node, state in states.items() if state == "completed"} == {"check_stock", "refund"}
    assert set(states.values()) == {"completed", "skipped"}
