"""Actions that ask a provider for something over HTTP: as a coroutine, in a thread, in a process of their own."""

from __future__ import annotations

import json
import os
import urllib.request

import holdfast as hf

app = hf.App("victim")


def post(order: int, idempotency_key: str) -> dict:
    request = urllib.request.Request(
        os.environ["PROVIDER_URL"],
        data=json.dumps({"order": order}).encode(),
        headers={"Idempotency-Key": idempotency_key},
    )
    with urllib.request.urlopen(request, timeout=20) as response:
        return json.loads(response.read())


@app.action
async def coroutine(ctx: hf.Context, order: int) -> dict:
    return await ctx.effect("mail.send", post, order, key=f"order:{order}")


@app.action
def thread(ctx: hf.Context, order: int) -> dict:
    return ctx.effect("mail.send", post, order, key=f"order:{order}")


@app.action(isolation="process")
def process(ctx: hf.Context, order: int) -> dict:
    return ctx.effect("mail.send", post, order, key=f"order:{order}")


@app.action(isolation="process")
async def everything(ctx: hf.Context, order: int) -> list:
    """What a coroutine in a process of its own can ask of its worker."""
    doubled = await ctx.step("double", lambda x: 2 * x, order)
    try:
        await ctx.effect("mail.send", post, order, key="k")
        await ctx.effect("mail.send", post, order + 1, key="k")
    except hf.Conflict as error:
        return [doubled, error.code, await ctx.heartbeat(), bool(ctx.lease_token)]
    return []
