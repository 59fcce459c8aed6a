"""Runs by hand: claim what can be claimed, end it, and see what goes next."""

from __future__ import annotations

from holdfast.codec import json_codec
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.testing.factories import a_failure


async def step(harness, *, fail=(), outputs=None) -> list[str]:
    """Claim everything that can be claimed, and end it; answers the actions' inputs in order."""
    leases = await harness.claim(100)
    for lease in leases:
        node = (lease.claimed.run_id, lease.claimed.node_no)
        if lease.claimed.fault is not None:
            await harness.settle(lease, Failed(lease.claimed.fault))
        elif lease.claimed.node_no in fail:
            await harness.settle(lease, Failed(a_failure()))
        else:
            value = (outputs or {}).get(node[1])
            await harness.settle(lease, Completed(json_codec.encode(value, bytes_max=10**8, what="output")))
    return [json_codec.decode(lease.claimed.input) for lease in leases]


async def finish(harness, **options) -> int:
    """Step until nothing is left to claim; answers how many steps it took."""
    steps = 0
    while await step(harness, **options):
        steps += 1
    return steps
