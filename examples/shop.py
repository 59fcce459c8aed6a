"""A small shop with all that a queue meets on an ordinary day: work that succeeds, stumbles, breaks or takes long."""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import Any

import holdfast as hf

app = hf.App("shop")


@app.action(queue="mail", max_retries=4, retry={"base_backoff_secs": 0.3})
async def send_receipt(ctx: hf.Context, order_id: int) -> dict[str, str]:
    """Every seventh mail server is moody the first time."""
    await asyncio.sleep(0.02)
    if order_id % 7 == 0 and ctx.attempt == 1:
        raise ConnectionResetError("connection reset by mail.example")
    return {"message_id": f"<{order_id}.{ctx.attempt}@shop.example>"}


@app.action(queue="orders", max_retries=2)
async def charge(order_id: int, cents: int) -> dict[str, int]:
    """A card that cannot be charged will not be chargeable in a second either: not retried, and it says why."""
    await asyncio.sleep(0.01)
    if cents <= 0:
        raise hf.Fatal(f"order {order_id} asks for {cents} cents")
    return {"charged": cents}


@app.action(queue="images")
def thumbnail(path: str) -> str:
    """Plain blocking code: it runs in a thread."""
    time.sleep(0.01)
    return hashlib.sha256(path.encode()).hexdigest()[:12]


@app.action(queue="reports", timeout="30s")
async def monthly_report(ctx: hf.Context, month: str) -> str:
    """Long enough that somebody may pull the plug meanwhile."""
    for step in range(40):
        ctx.progress(step, 40, f"{month}: page {step + 1}")
        await asyncio.sleep(0.05)
    return f"report-{month}.pdf"


@app.action(queue="orders")
async def open_orders(day: str) -> dict[str, list[int]]:
    """What is to be packed this evening."""
    await asyncio.sleep(0.2)
    return {"orders": list(range(1, 25))}


@app.action(queue="orders", max_retries=3, retry={"base_backoff_secs": 0.3})
async def pack(ctx: hf.Context, order: int) -> str:
    """Now and then the label printer jams."""
    await asyncio.sleep(0.1)
    if order % 10 == 0 and ctx.attempt == 1:
        raise ConnectionResetError("connection reset by printer.example")
    return f"parcel {order}"


@app.action(queue="reports")
async def count_cash(day: str) -> dict[str, int]:
    await asyncio.sleep(0.4)
    return {"cents": 48_200}


@app.action(queue="mail")
async def tell_owner(parcels: list[str], cents: int) -> str:
    return f"{len(parcels)} parcels left the house, {cents / 100:.2f} in the till"


@app.flow(version=1)
def close_day(day: str) -> Any:
    """Orders are packed one by one while the cash is counted; the owner hears of both."""
    orders = open_orders(day=day)
    cash = count_cash(day=day)
    parcels = pack.map(order=orders["orders"])
    return {"mail": tell_owner(parcels=parcels, cents=cash["cents"])}
