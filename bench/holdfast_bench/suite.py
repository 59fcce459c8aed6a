"""The suite: all measurements, and one run of the requested ones, into one result object."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast_bench.backlog import measure_backlog
from holdfast_bench.churn import measure_churn
from holdfast_bench.drain import measure_drain
from holdfast_bench.enqueue import measure_enqueue
from holdfast_bench.flow import measure_flow
from holdfast_bench.http import measure_http
from holdfast_bench.idle import measure_idle
from holdfast_bench.latency import measure_latency
from holdfast_bench.pages import measure_pages
from holdfast_bench.peers.field import Peer
from holdfast_bench.peers.run import PeerRuns
from holdfast_bench.recovery import measure_recovery
from holdfast_bench.redrive import measure_redrive
from holdfast_bench.storm import measure_storm
from holdfast_bench.tenants import measure_tenants
from holdfast_bench.trial import Trial
from holdfast_bench.xmin import measure_xmin

EXTRA_PARTS = ("storm", "redrive", "http", "pages", "tenants", "xmin")
"""Measured only when requested by name."""
PARTS = ("drain", "enqueue", "latency", "recovery", "backlog", "flow", "size", "memory", "idle")

_MEASURES: Mapping[str, tuple[str, Callable[[Trial], Awaitable[dict[str, Any]]]]] = {
    "enqueue": ("enqueue", measure_enqueue),
    "latency": ("latency_ms", measure_latency),
    "recovery": ("recovery_s", measure_recovery),
    "backlog": ("backlog", measure_backlog),
    "idle": ("idle", measure_idle),
    "storm": ("storm", measure_storm),
    "redrive": ("redrive", measure_redrive),
    "http": ("http", measure_http),
    "pages": ("pages", measure_pages),
    "tenants": ("tenants", measure_tenants),
    "xmin": ("xmin", measure_xmin),
}


async def run_suite(trial: Trial, parts: Sequence[str], peers: Sequence[Peer] = ()) -> dict[str, Any]:
    """Measure `parts` one after the other; the shape of the result is a public contract.

    A part that fails loses its own numbers only: `failed` contains the reason, by part.
    """
    results: dict[str, Any] = {}
    failed: dict[str, str] = {}
    with_flows = [peer for peer in peers if peer.is_flow and "flow" in parts]
    # If only flows are requested, peers run only flows; otherwise they also run the drain.
    is_drained = "drain" in parts or (peers and not with_flows)
    field = PeerRuns(trial, [peer for peer in peers if not peer.is_flow] if is_drained else [])
    flows = PeerRuns(trial, with_flows)
    await field.install()
    await flows.install()

    async def measure_part(part: str) -> None:
        if part == "drain":
            results["drain"] = await measure_drain(trial, beside=field.round)
        elif part == "flow":
            found = await measure_flow(trial, beside=flows.round)
            results["flow"] = found | {"peers": beside_ours(found["nodes_per_s"], flows.results())}
        elif part in _MEASURES:
            key, measure = _MEASURES[part]
            results[key] = await measure(trial)
        elif "size" not in results:
            # Size and memory are two readings of the same long run.
            results.update(await measure_churn(trial))

    for part in (*(("drain",) if is_drained else ()), *(part for part in parts if part != "drain")):
        try:
            await measure_part(part)
        except Exception as error:  # noqa: BLE001 - hours of other parts must not be lost with it
            failed[part] = f"{type(error).__name__}: {error}"
            trial.say(f"{part} failed: {failed[part]}")
    if failed:
        results["failed"] = failed
    results |= {"peers": field.results(), "server": dict(trial.arena.server)}
    results.setdefault("flow", {})
    built: dict[str, Any] = msgspec.to_builtins(results)
    return built


def beside_ours(nodes_per_s: float, peers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results of other engines with the same graphs; `ratio` is how many times as fast Holdfast was."""
    found: dict[str, Any] = {}
    for name, result in peers.items():
        theirs = result["drain_per_s"]
        found[name] = {key: value for key, value in result.items() if key != "drain_per_s"} | {
            "nodes_per_s": theirs,
            "ratio": None if theirs is None else round(nodes_per_s / theirs, 2),
        }
    return found


def losses_and_doubles(results: Mapping[str, Any]) -> list[str]:
    """Return what must never happen, if it did."""
    wrong = [f"{part} failed: {why}" for part, why in results.get("failed", {}).items()]
    wrong += [
        f"{key}: {count} {word}"
        for key in ("drain", "latency_ms", "backlog", "flow", "redrive", "http", "tenants", "xmin")
        for word in ("doubles", "losses")
        if (count := results.get(key, {}).get(word))
    ]
    wrong += [
        text
        for key in ("drain", "flow", "redrive", "http", "xmin")
        for text in results.get(key, {}).get("violations", [])
    ]
    arms = results.get("storm", {}).get("arms", {})
    wrong += [f"storm, {name}: {text}" for name, arm in arms.items() for text in arm["violations"]]
    recovery = results.get("recovery_s", {})
    for name, one in (("default lease", recovery), *((name, recovery.get(name)) for name in ("tuned", "supervised"))):
        if one and (one["overlaps"] or one["extra_executions"]):
            wrong.append(f"recovery, {name}: executions overlapped or repeated")
        if one and one["recovered"] < one["kills"]:
            wrong.append(f"recovery, {name}: {one['kills'] - one['recovered']} tasks were not run again")
    return wrong
