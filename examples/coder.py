"""An agent that writes code, and a person who has the last word.

    HOLDFAST_ENV=local python examples/coder.py

The plan is cut into changes; each is written and tested in parallel, a flaky test run is retried; nothing is merged
before somebody approved it, and a rejection ends the run as failed, with the reason on record.
"""

from __future__ import annotations

import ast
import asyncio
from typing import Any

import holdfast as hf
from holdfast.testing.idle import run_until_idle

app = hf.App("coder")

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


async def main() -> None:
    """Run one request here and now, and approve it."""
    async with app.client() as client:
        run = await client.start(change_code, request="write add and mean")
        await run_until_idle(app, client.engine)
        await run.approve("go_ahead", comment="looks right", actor="grace")
        await run_until_idle(app, client.engine)
        print(await run.wait(timeout=30), await run.result())


if __name__ == "__main__":
    asyncio.run(main())
