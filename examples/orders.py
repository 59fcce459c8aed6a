"""An order from the click to the door: check the stock, charge, pack every item, wait for the courier, send a mail.

    HOLDFAST_ENV=local python examples/orders.py

What is out of stock is refunded instead of packed; a bank that hangs up is retried; the parcel waits for an event from
outside, and then a mail goes out. Where nothing is in stock there is no parcel: everything but the refund is skipped.
"""

from __future__ import annotations

import asyncio
from typing import Any

import holdfast as hf

app = hf.App("orders")

SHELF = {"apple": 12, "bread": 3, "milk": 0}
LOOK_SECONDS = 0.05


@app.action
async def check_stock(items: list[str]) -> dict[str, Any]:
    """Say what can be delivered and what cannot."""
    present = [item for item in items if SHELF.get(item, 0) > 0]
    return {"present": present, "missing": [item for item in items if item not in present], "count": len(present)}


@app.action(max_retries=3, retry={"base_backoff_secs": 0})
async def charge(ctx: hf.Context, order_id: int, items: list[str]) -> dict[str, int]:
    """Charge for what is delivered. The bank hangs up the first time: retried by itself."""
    if ctx.attempt == 1:
        raise ConnectionResetError("connection reset by bank.example")
    return {"cents": 250 * len(items)}


@app.action
async def pack(item: str) -> str:
    return f"box of {item}"


@app.action
async def refund(order_id: int, items: list[str]) -> dict[str, int]:
    return {"refunded": len(items)}


@app.action
async def label(order_id: int, boxes: list[str]) -> dict[str, Any]:
    return {"parcel": f"parcel-{order_id}", "boxes": len(boxes)}


@app.action
async def tell_customer(order_id: int, parcel: dict[str, Any], pickup: dict[str, Any]) -> str:
    return f"order {order_id}: {parcel['boxes']} boxes, picked up by {pickup['courier']}"


@app.flow(version=1)
def fulfil(order_id: int, items: list[str]) -> Any:
    """Calling an action adds a node; indexing its result binds a value."""
    stock = check_stock(items=items)
    paid = charge.when(stock["count"] > 0)(order_id=order_id, items=stock["present"])
    refund.when(stock["missing"])(order_id=order_id, items=stock["missing"])
    boxes = pack.after(paid).map(item=stock["present"])
    parcel = label(order_id=order_id, boxes=boxes)
    pickup = hf.wait_for("picked_up", key=order_id, timeout="2d", after=[parcel])
    return {"mail": tell_customer(order_id=order_id, parcel=parcel, pickup=pickup)}


async def work_until(run: hf.Run, node: str, *states: str) -> None:
    """Be the worker until a node stands there. `holdfast work examples/orders.py:app` would do it just as well."""
    async with app.processor(worker_id="example") as processor:
        while not any(task.node == node and task.state in states for task in await run.tasks()):
            if not (await processor.process_once()).processed:
                await asyncio.sleep(LOOK_SECONDS)


async def main() -> None:
    """Run one order here and now, with a worker in this process."""
    async with app.client() as client:
        print("An order of apple, milk and bread comes in; there is no milk left.\n")
        run = await client.start(fulfil, order_id=7, items=["apple", "milk", "bread"])
        await work_until(run, "picked_up", "running")
        attempts = {task.node: task.attempt for task in await run.tasks()}
        again = attempts["charge"]
        print(f"  charge     done at attempt {again}: the bank hung up on the first, which was retried by itself")
        print('  refund     ran for the milk, because stock["missing"] was not empty')
        print("  pack       ran once per item that is there, side by side")
        print("  picked_up  waits for the courier: no worker, no thread and no connection is held for it\n")

        print("Hours or days later the courier scans the parcel, and somebody says so:")
        print('  client.signal("picked_up", {"courier": "Ada"}, key="7")\n')
        await client.signal("picked_up", {"courier": "Ada"}, key="7")
        await work_until(run, "tell_customer", "completed", "failed")
        print(f"The run {await run.wait(timeout=30)}, with the mail: {(await run.result())['mail']}\n")
        for task in await run.tasks():
            print(f"  {task.state:<12}{task.node}")
        print("\nWhy it matters: each step is stored when it is done. Kill this program anywhere and start workers:")
        print("the run goes on where it stood, and nobody is charged twice for a step that is on record.")
        print(f"Look at it:  holdfast run graph {run.run_id}   holdfast run show {run.run_id}   docs/flows.md")


if __name__ == "__main__":
    asyncio.run(main())
