"""Flows: the rate of runs compared to plain tasks, the latency of a hop, and the cost of a giant run.

A fan is one node, many, and one that joins them, with values bound along every edge. Every node leaves a mark, and the
database must verify at the end.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

from holdfast.client.client import Client
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import RUN_INPUT, Binding, Edge, FlowInput, Node
from holdfast.core.flows.ports import Port
from holdfast_bench.app import link, step
from holdfast_bench.cpu import children_of, resident_bytes
from holdfast_bench.drain import all_settled, drain_once, fill, pause, resume, tidy
from holdfast_bench.spread import quantiles, spread, typical
from holdfast_bench.trial import Trial
from holdfast_bench.verified import violations
from holdfast_bench.waiting import until

FAN_RUNS, FAN_WIDTH = 200, 100
CHAIN_NODES = 1_000
JOIN_WIDTH, GIANT_NODES = 10_000, 100_000
OTHERS_TURNS = 3
STARTED_RUNS, STARTED_NODES, STARTED_CHUNK = 10_000, 10, 1_000
QUICK_PART = 20
RUN_SECONDS_MAX = 600.0
MEGABYTE = 1024 * 1024
_OPEN = "select exists (select from holdfast.run where state = 'o')"


async def _nobody() -> None:
    """Do nothing: no other engine takes part."""


async def measure_flow(trial: Trial, *, beside: Callable[[], Awaitable[None]] = _nobody) -> dict[str, Any]:
    """Measure everything, with smaller sizes in a quick run. `beside` takes turns with the fans."""
    part = QUICK_PART if trial.is_quick else 1
    found = await _fans(trial, FAN_RUNS // part, FAN_WIDTH, beside)
    found |= await _chain(trial, CHAIN_NODES // part)
    trial.say("flow: a wide join and a giant run")
    found |= await _giants(trial, JOIN_WIDTH // part, GIANT_NODES // part)
    trial.say("flow: starting runs")
    found |= await _starts(trial, STARTED_RUNS // part)
    found["violations"] = await violations(trial.arena)
    return found


async def _fans(trial: Trial, runs: int, width: int, beside: Callable[[], Awaitable[None]]) -> dict[str, Any]:
    """Measure runs of 1 → width → 1 and as many plain tasks, in turn."""
    nodes = runs * (width + 2)
    flows: list[float] = []
    plain: list[float] = []
    losses = doubles = 0
    for number in range(1, trial.rounds + 1):
        trial.say(f"flow, round {number}: {runs} runs of 1 → {width} → 1")
        flows.append(nodes / await _run_seconds(trial, a_fan(width), runs))
        losses += trial.marks.missing(nodes)
        doubles += trial.marks.doubles(nodes)
        trial.say(f"flow, round {number}: {nodes:,} plain tasks")
        plain.append((await drain_once(trial, nodes)).per_s)
        await beside()
    ratios = [one / other for one, other in zip(flows, plain, strict=True)]
    return {
        "nodes_per_s": round(spread(flows).median, 1),
        "spread": spread(flows),
        "plain_per_s": round(spread(plain).median, 1),
        "ratio": round(spread(ratios).median, 4),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "runs": runs,
        "width": width,
        "losses": losses,
        "doubles": doubles,
    }


async def _run_seconds(trial: Trial, flow: FlowDefinition, runs: int) -> float:
    """Return the seconds from the first claim to the end of the last run; workers connect before."""
    size = len(flow.nodes)
    await trial.arena.fresh()
    trial.marks.clear()
    async with trial.client() as client:
        await client.start_many(flow, [{"base": number * size} for number in range(runs)])
        await pause(client)
        await tidy(trial)
        async with trial.workers():
            began_at = await resume(client)
            return await all_settled(trial, runs * size, settled=_all_over) - began_at


async def _all_over(connection: Any) -> float:
    """Wait until no run is open: then none of its tasks is left to settle."""
    while await connection.fetchval(_OPEN):
        pass
    return time.monotonic()


async def _chain(trial: Trial, nodes: int) -> dict[str, Any]:
    """Measure the time from one node's start to the next one's."""
    rounds: list[dict[str, float]] = []
    for turn in range(1, trial.rounds + 1):
        trial.say(f"flow, round {turn}: a chain")
        await _run_seconds(trial, a_chain(nodes), 1)
        starts = [trial.marks.started_at(number) for number in range(nodes)]
        rounds.append(quantiles([(later - earlier) * 1000 for earlier, later in pairwise(starts)], "p50", "p99"))
    return {"hop_ms": {**typical(rounds), "p50s": [one["p50"] for one in rounds]}, "chain": nodes}


async def _giants(trial: Trial, width: int, nodes: int) -> dict[str, Any]:
    """Measure one wide join, and one run ten times as large: its rate, its memory, and its effect on other work."""
    join_per_s = (width + 2) / await _run_seconds(trial, a_fan(width), 1)
    giant = a_fan(nodes - 2)
    memory: list[int] = []
    await trial.arena.fresh()
    trial.marks.clear()
    async with trial.client() as client, trial.workers() as workers:
        pids = [pid for worker in workers for pid in children_of(worker.pid)]
        await fill(client, width)
        await all_settled(trial, width)
        memory.append(max(resident_bytes(pid) or 0 for pid in pids))
        trial.marks.clear()
        await pause(client)
        await client.start(giant, base=0)
        began_at = await resume(client)
        giant_per_s = nodes / (await all_settled(trial, nodes, settled=_all_over) - began_at)
        memory.append(max(resident_bytes(pid) or 0 for pid in pids))
    return {
        "join_per_s": round(join_per_s, 1),
        "join": width,
        "giant_per_s": round(giant_per_s, 1),
        "giant": nodes,
        "giant_ratio": round(giant_per_s / join_per_s, 4),
        "giant_memory_mb": round((memory[1] - memory[0]) / MEGABYTE, 1),
        **await _others(trial, width, nodes, giant),
    }


async def _others(trial: Trial, tasks: int, nodes: int, giant: FlowDefinition) -> dict[str, Any]:
    """Measure how fast other work runs during a giant run, relative to during as many plain tasks, in turns."""
    rates, ratios = [], []
    for turn in range(1, min(trial.rounds, OTHERS_TURNS) + 1):
        trial.say(f"flow: other work beside a giant run, round {turn}")
        beside_tasks = await _beside(trial, tasks, nodes, None)
        rates.append(await _beside(trial, tasks, nodes, giant))
        ratios.append(rates[-1] / beside_tasks)
    return {
        "others_ratio": round(spread(ratios).median, 4),
        "others_ratios": [round(ratio, 4) for ratio in ratios],
        "others_per_s": round(spread(rates).median, 1),
    }


async def _beside(trial: Trial, tasks: int, nodes: int, giant: FlowDefinition | None) -> float:
    await trial.arena.fresh()
    trial.marks.clear()
    async with trial.client() as client:
        await _fill_links(client, tasks, first=nodes)
        if giant is None:
            await fill(client, nodes)
        else:
            await client.start(giant, base=0)
        await pause(client)
        await tidy(trial)
        async with trial.workers():
            began_at = await resume(client)
            is_done = await until(
                lambda: all(trial.marks.count(nodes + number) for number in range(tasks)), seconds_max=RUN_SECONDS_MAX
            )
            ended_at = max(trial.marks.started_at(nodes + number) for number in range(tasks)) if is_done else 0.0
            await all_settled(trial, nodes)
    return tasks / (ended_at - began_at)


async def _fill_links(client: Client, tasks: int, *, first: int) -> None:
    for start in range(0, tasks, STARTED_CHUNK):
        batch = range(start, min(start + STARTED_CHUNK, tasks))
        await client.enqueue_many(link, [{"base": first + number, "i": 0} for number in batch])


async def _starts(trial: Trial, runs: int) -> dict[str, Any]:
    """Measure the nodes per second of accepted runs, a thousand runs per call."""
    flow = a_chain(STARTED_NODES)
    await trial.arena.fresh()
    async with trial.client() as client:
        await client.start(flow, base=0)
        began_at = time.monotonic()
        for start in range(0, runs, STARTED_CHUNK):
            await client.start_many(flow, [{"base": 0}] * min(STARTED_CHUNK, runs - start))
        seconds = time.monotonic() - began_at
    return {"started_nodes_per_s": round(runs * STARTED_NODES / seconds, 1), "started_runs": runs}


def a_fan(width: int) -> FlowDefinition:
    """Return a flow of one node, `width` that take its value, and one that takes all of theirs."""
    middle = [f"middle{number}" for number in range(width)]
    nodes = (
        Node(name="first", action=step.name, config={"i": 0}),
        *(Node(name=name, action=step.name, config={"i": 1 + i}) for i, name in enumerate(middle)),
        Node(
            name="last",
            action=step.name,
            config={"i": width + 1},
            inputs=(*(Port(key=key) for key in ("base", "i")), Port(key="values", is_list=True)),
        ),
    )
    base = Binding(output_key="base", input_key="base")
    edges = (
        Edge(upstream=RUN_INPUT, downstream="first", bindings=(base,)),
        Edge(upstream=RUN_INPUT, downstream="last", bindings=(base,)),
        *(Edge(upstream="first", downstream=name, bindings=(base,)) for name in middle),
        *(
            Edge(upstream=name, downstream="last", bindings=(Binding(output_key="base", input_key="values"),))
            for name in middle
        ),
    )
    return FlowDefinition(
        name=f"bench.fan{width}", nodes=nodes, edges=edges, inputs=(FlowInput(name="base"),)
    ).validated()


def a_chain(length: int) -> FlowDefinition:
    """Return a flow of nodes one after the other, each with the value of the previous one."""
    names = [f"link{number}" for number in range(length)]
    base = Binding(output_key="base", input_key="base")
    edges = [Edge(upstream=RUN_INPUT, downstream=names[0], bindings=(base,))]
    edges += [Edge(upstream=up, downstream=down, bindings=(base,)) for up, down in pairwise(names)]
    return FlowDefinition(
        name=f"bench.chain{length}",
        nodes=tuple(Node(name=name, action=step.name, config={"i": i}) for i, name in enumerate(names)),
        edges=tuple(edges),
        inputs=(FlowInput(name="base"),),
    ).validated()
