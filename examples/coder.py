"""An agent that writes code, and a person who has the last word.

    HOLDFAST_ENV=local python examples/coder.py

The plan is cut into changes; each is written and tested in parallel, a flaky test run is retried; nothing is merged
before an operator approved it, and a rejection ends the run as failed, with the reason on record.
"""

from __future__ import annotations

import ast
import asyncio
from typing import Any

import holdfast as hf

app = hf.App("coder")

LOOK_SECONDS = 0.05
LIBRARY = {
    "add": "def add(a, b):\n    return a + b\n",
    "mean": "def mean(values):\n    return sum(values) / len(values)\n",
}


@app.action
async def plan(request: str) -> dict[str, list[str]]:
    """Cut the request into functions to write."""
    return {"functions": [name for name in LIBRARY if name in request]}


@app.action(timeout="30s")
async def write(function: str) -> dict[str, str]:
    """The model's turn. Here it knows everything by heart."""
    return {"name": function, "source": LIBRARY[function]}


@app.action(max_retries=2, retry={"base_backoff_secs": 0}, isolation="thread")
def run_tests(ctx: hf.Context, change: dict[str, str]) -> dict[str, Any]:
    """Parse what was written. The first machine always hangs up."""
    if ctx.attempt == 1:
        raise ConnectionResetError("the test machine hung up")
    tree = ast.parse(change["source"])
    return {**change, "functions": [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]}


@app.action
async def review(changes: list[dict[str, Any]]) -> dict[str, Any]:
    """Put everything into one diff for a person."""
    return {"changes": len(changes), "diff": "\n".join(change["source"] for change in changes)}


@app.action
async def merge(diff: str, decision: dict[str, Any]) -> dict[str, Any]:
    return {"lines": diff.count("\n"), "approved_by": decision["by"]}


@app.flow(version=1)
def change_code(request: str) -> Any:
    """Plan, write and test in parallel, review, ask, merge."""
    todo = plan(request=request)
    written = write.map(function=todo["functions"])
    tested = run_tests.map(change=written)
    proposal = review(changes=tested)
    decision = hf.approval("go_ahead", prompt="Merge this?", timeout="1d", after=[proposal])
    return merge(diff=proposal["diff"], decision=decision)


async def work_until(run: hf.Run, node: str, *states: str) -> None:
    """Be the worker until a node stands there. `holdfast work examples/coder.py:app` would do it just as well."""
    async with app.processor(worker_id="example") as processor:
        while not any(task.node == node and task.state in states for task in await run.tasks()):
            if not (await processor.process_once()).processed:
                await asyncio.sleep(LOOK_SECONDS)


async def main() -> None:
    """Run one request here and now, and approve it."""
    async with app.client() as client:
        print('Somebody asks an agent: "write add and mean".\n')
        run = await client.start(change_code, request="write add and mean")
        await work_until(run, "go_ahead", "running")
        written = await client.tasks(action="coder.write", limit=2)
        tested = await client.tasks(action="coder.run_tests", limit=2)
        attempts = max(task.attempt for task in tested if task.kind == "item")
        print("  plan       cut the request into two functions")
        print(f"  write      wrote them as {len(written)} tasks of their own, side by side")
        print(f"  run_tests  needed {attempts} attempts each: the test machine hung up, which was retried by itself")
        print("  go_ahead   waits for a person; nothing is merged before. Until then no worker is held.\n")
        print("Grace looks at the diff and approves it, as `holdfast run approve` or a call over HTTP would:\n")
        await run.approve("go_ahead", comment="looks right", actor="grace")
        await work_until(run, "merge", "completed", "failed")
        result = await run.result(timeout=30)
        print(f"The run completed: {result['lines']} lines merged, approved by {result['approved_by']}.\n")
        for task in await run.tasks():
            print(f"  {task.state:<12}{task.node}")
        print(
            "\nWhy it matters: who approved what, when and why is on record, and a rejection would have ended the run"
        )
        print("as failed with that reason. The person may take a day; restarts in between change nothing.")
        print(f"Look at it:  holdfast run show {run.run_id}   holdfast audit list   docs/flows.md")


if __name__ == "__main__":
    asyncio.run(main())
