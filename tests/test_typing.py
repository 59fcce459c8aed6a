"""What a type checker sees: inputs of actions, what results are, and flows of `async` actions.

Each line of the file that ends in `# error` must be refused, and no other.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import holdfast

PROGRAM = """\
from typing import Any

import holdfast as hf

app = hf.App("shop")


@app.action(queue="mail", max_retries=3)
async def extract(ctx: hf.Context, day: str) -> dict[str, list[int]]:
    return {"rows": [len(day)]}


@app.action
def add(a: int, b: int = 1) -> int:
    return a + b


@app.action()
def untyped(x, y=2):  # type: ignore[no-untyped-def]
    return x


@app.flow(version=1)
def nightly(day: str) -> None:
    found = extract(day=day)
    add(a=found["rows"])
    extract(dya=day)  # error


async def use(client: hf.Client, connection: Any) -> None:
    task = await client.enqueue(extract, day="2026-11-15")
    rows: dict[str, list[int]] = await task.result()
    wrong: int = await task.result()  # error
    number: int = await (await client.enqueue(add, a=1)).result()
    await client.enqueue(add, a="many")  # error
    await client.enqueue(add, b=2)  # error
    await client.enqueue(add, a=1, zzz=3)  # error
    await client.enqueue(add.options(delay="5m"), a=1)
    await client.enqueue(add.options(delay="5m"), a="x")  # error
    await client.enqueue(add, a=1, connection=connection)
    await client.enqueue("shop.add", anything=1)
    await client.enqueue(untyped, x=1)
    await client.enqueue(print)  # error
    print(await add_all(client), rows, wrong, number, await extract(day="x"))


async def add_all(client: hf.Client) -> list[int]:
    return [await task.result() for task in await client.enqueue_many(add, [{"a": 1}])]


def blocking(client: hf.SyncClient) -> int:
    client.enqueue(add, a="x")  # error
    task = client.enqueue(add, a=1)
    wrong: str = task.result(timeout=5)  # error
    task.cancel(7)  # error
    task.cancel(why="late")  # error
    state: str = task.cancel("late")
    rows: list[str] = client.tasks(limit=5)  # error
    run = client.start_by_name("shop.nightly", {"day": "2026-11-15"}, version=3)
    again: str = run.clone(day="2026-11-16").wait(timeout=5)
    print([event.kind for event in run.events()], run.events().kind)  # error
    client.dead.redrive("7")  # error
    print(wrong, state, rows, again)
    return task.result()
"""


def test_inputs_and_results_are_typed_and_flows_of_async_actions_pass(tmp_path):
    file = tmp_path / "typed_app.py"
    file.write_text(PROGRAM)
    root = Path(holdfast.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", str(file)],
        cwd=root.parent,
        env={"MYPYPATH": str(root), "PATH": "", "MYPY_CACHE_DIR": str(root.parent / ".mypy_cache" / "typed")},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    refused = {int(number) for number in re.findall(r"typed_app\.py:(\d+): error", done.stdout)}
    wanted = {number for number, line in enumerate(PROGRAM.splitlines(), start=1) if line.endswith("# error")}
    assert refused == wanted, done.stdout + done.stderr
