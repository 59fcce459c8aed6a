"""The examples of docs/testing.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
EXAMPLES = {
    name: block
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for name in re.findall(r"^async def (test_\w+)", block, re.MULTILINE)
}


def example(name: str):
    """The test function of one example, in a module of its own."""
    namespace: dict[str, object] = {"__name__": name}
    exec(compile(EXAMPLES[name], str(PAGE), "exec"), namespace)
    return namespace[name]


def test_the_page_has_an_example_of_each_kind():
    assert len(EXAMPLES) == 3


async def test_the_example_that_runs_an_app_until_idle_holds(holdfast_url, clock):
    await example("test_a_charge_survives_two_broken_connections")(holdfast_url, clock)


async def test_the_example_that_moves_the_time_of_day_holds(holdfast_url, clock):
    await example("test_an_offer_ends")(holdfast_url, clock)


async def test_the_example_that_takes_one_step_at_a_time_holds(harness, clock):
    await example("test_a_worker_that_lost_its_lease_cannot_report")(harness, clock)
