"""The examples of docs/schedules.md run as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from holdfast.authoring.loader import load_app
from holdfast.testing.idle import run_until_idle
from holdfast.worker.runtime.declare_schedules import declare_schedules

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "schedules.md").read_text()
APP, TEST = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^\$ holdfast (.+)$", PAGE, re.MULTILINE)


def the_app(tmp_path):
    path = tmp_path / "docs_schedules.py"
    path.write_text(APP)
    return load_app(f"{path}:app")


def test_the_commands_run(holdfast, seed, tmp_path):
    app = the_app(tmp_path)

    async def prepare(harness):
        for action in app.actions.values():
            policy = action.policy(harness.engine.policy_defaults)
            await harness.engine.catalog.declare(1, action.name, action.queue, policy, "")
        await declare_schedules(harness.engine, "app:shop", app.schedules.values(), app.actions)

    seed(prepare)
    assert len(COMMANDS) == 6
    for command in COMMANDS:
        ran = holdfast(*shlex.split(command))
        assert (ran.code, ran.err) == (0, ""), command
    names = [row["name"] for row in holdfast("schedule", "list", "-o", "json").json]
    assert names == ["nightly", "shop.morning", "shop.pulse"]


async def test_what_the_app_schedules_runs(harness, engine, clock, tmp_path):
    app = the_app(tmp_path)
    await run_until_idle(app, engine)
    fired = await harness.schedules.fire("shop.morning")
    await run_until_idle(app, engine)
    (attempt,) = await harness.attempts(fired.task_id)
    assert attempt.output.startswith(b'"staff: ')


async def test_the_test_holds(harness, clock):
    namespace: dict[str, object] = {}
    exec(compile(TEST, "schedules.md", "exec"), namespace)
    await namespace["test_a_morning_digest_is_for_its_slot"](harness, clock)
