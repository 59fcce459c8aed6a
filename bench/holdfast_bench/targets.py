"""The performance targets: one line per number, with its limit and whether it is met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast_bench.churn import MEGABYTE

LIVE_MB_MAX = 64 * 1024 * 1024 / MEGABYTE


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLine:
    """One measured number in readable form. `is_met` is None if it could not be measured."""

    name: str
    value: str
    target: str
    is_met: bool | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A limit on the number found at `path`. Ratios are shown in per cent."""

    name: str
    path: str
    limit: float
    is_least: bool = False
    is_absolute: bool = False
    unit: str = ""
    detail: str = ""

    def line(self, results: Mapping[str, Any]) -> TargetLine | None:
        """Return the line of this target; None if its part was not measured."""
        if results.get(self.path.partition(".")[0]) in (None, {}):
            return None
        found = at(results, self.path)
        is_met = None if found is None else self._is_met(found)
        sign = "≥" if self.is_least else "±" if self.is_absolute else "≤"
        return TargetLine(
            name=self.name,
            value="unknown" if found is None else self._shown(found),
            target=f"{sign} {self._shown(self.limit)}",
            is_met=is_met,
            detail=_filled(self.detail, results),
        )

    def _is_met(self, found: float) -> bool:
        if self.is_least:
            return found >= self.limit
        return (abs(found) if self.is_absolute else found) <= self.limit

    def _shown(self, number: float) -> str:
        if self.unit == "%":
            return f"{number * 100:.0f} %"
        return f"{number:.3g} {self.unit}".strip() if abs(number) < 100 else f"{number:,.0f} {self.unit}".strip()


TARGETS = (
    Target(
        name="drain",
        path="drain.ratio",
        limit=0.70,
        is_least=True,
        unit="%",
        detail="{drain.tasks_per_s} tasks/s of a raw {drain.raw_ceiling_per_s}",
    ),
    Target(
        name="enqueue, 1,000 a call",
        path="enqueue.bulk_ratio",
        limit=0.70,
        is_least=True,
        unit="%",
        detail="{enqueue.bulk_per_s} tasks/s of a raw {enqueue.raw_bulk_per_s}",
    ),
    Target(
        name="enqueue, one by one",
        path="enqueue.single_ratio",
        limit=0.80,
        is_least=True,
        unit="%",
        detail="{enqueue.single_per_s} tasks/s of a raw {enqueue.raw_single_per_s}",
    ),
    Target(name="latency p50, 1 worker", path="latency_ms.workers_1.p50", limit=4, unit="ms"),
    Target(name="latency p99, 1 worker", path="latency_ms.workers_1.p99", limit=10, unit="ms"),
    Target(name="latency p50, 10 workers", path="latency_ms.workers_10.p50", limit=4, unit="ms"),
    Target(name="latency p99, 10 workers", path="latency_ms.workers_10.p99", limit=10, unit="ms"),
    Target(
        name="recovery, default lease",
        path="recovery_s.max",
        limit=12,
        unit="s",
        detail="lease {recovery_s.lease_seconds} s, worst of {recovery_s.kills} kills",
    ),
    Target(
        name="recovery, tuned lease",
        path="recovery_s.tuned.max",
        limit=2,
        unit="s",
        detail="lease {recovery_s.tuned.lease_seconds} s, worst of {recovery_s.tuned.kills} kills",
    ),
    Target(
        name="recovery, supervised",
        path="recovery_s.supervised.max",
        limit=2,
        unit="s",
        detail="only the process dies, worst of {recovery_s.supervised.kills} kills",
    ),
    Target(
        name="backlog",
        path="backlog.ratio",
        limit=0.80,
        is_least=True,
        unit="%",
        detail="{backlog.other_lane_per_s} and {backlog.same_lane_per_s} tasks/s with {backlog.backlog} waiting,"
        " {backlog.none_per_s} without",
    ),
    Target(
        name="flow, 1 → 100 → 1",
        path="flow.ratio",
        limit=0.60,
        is_least=True,
        unit="%",
        detail="{flow.nodes_per_s} nodes/s in {flow.runs} runs, {flow.plain_per_s} plain tasks/s",
    ),
    Target(
        name="flow, a hop",
        path="flow.hop_ms.p50",
        limit=3,
        unit="ms",
        detail="median over a chain of {flow.chain} nodes, p99 {flow.hop_ms.p99} ms",
    ),
    Target(
        name="flow, a giant run",
        path="flow.giant_ratio",
        limit=0.80,
        is_least=True,
        unit="%",
        detail="{flow.giant} nodes in one run at {flow.giant_per_s} nodes/s, {flow.join} at {flow.join_per_s}",
    ),
    Target(
        name="flow, memory of a giant run",
        path="flow.giant_memory_mb",
        limit=100,
        is_absolute=True,
        unit="MB",
        detail="more in a worker after {flow.giant} nodes in one run",
    ),
    Target(
        name="flow, other work beside it",
        path="flow.others_ratio",
        limit=0.80,
        is_least=True,
        unit="%",
        detail="{flow.others_per_s} tasks/s, against the same beside as many plain tasks",
    ),
    Target(
        name="flow, starting runs",
        path="flow.started_nodes_per_s",
        limit=20_000,
        is_least=True,
        unit="nodes/s",
        detail="{flow.started_runs} runs of 10 nodes",
    ),
    Target(name="kept per task", path="bytes_per_task", limit=400, unit="bytes"),
    Target(
        name="live table",
        path="size.live_mb_max",
        limit=LIVE_MB_MAX,
        unit="MB",
        detail="largest with its indexes, while {size.tasks} tasks went through",
    ),
    Target(
        name="memory drift",
        path="memory.drift_mb",
        limit=20,
        is_absolute=True,
        unit="MB",
        detail="of a worker, {memory.resident_mb} MB at the end",
    ),
    Target(
        name="idle",
        path="idle.backend_fraction",
        limit=0.02,
        unit="%",
        detail="of a core in PostgreSQL for {idle.workers} workers, {idle.connections} connections",
    ),
    Target(
        name="redrive, other work",
        path="redrive.ratio",
        limit=0.80,
        is_least=True,
        unit="%",
        detail="{redrive.beside_per_s} tasks/s beside {redrive.letters} letters run again, {redrive.alone_per_s} alone",
    ),
    Target(
        name="http, drain",
        path="http.ratio",
        limit=0.40,
        is_least=True,
        unit="%",
        detail="{http.tasks_per_s} tasks/s in batches of {http.batch}, {http.direct_per_s} with the database",
    ),
    Target(
        name="http, claim p99",
        path="http.claim_ms.p99",
        limit=50,
        unit="ms",
        detail="{http.claim_ms.pollers} workers wait, p50 {http.claim_ms.p50} ms",
    ),
    Target(
        name="http, idle",
        path="http.idle.server_fraction",
        limit=0.05,
        unit="%",
        detail="of a core in the server for {http.idle.connections} connections",
    ),
    Target(
        name="pages, slowest p99",
        path="pages.p99_max_ms",
        limit=50,
        unit="ms",
        detail="{pages.questions} questions to {pages.lists} lists, {pages.tasks} tasks over, {pages.queued} queued",
    ),
    Target(
        name="drain under an old snapshot",
        path="xmin.ratio",
        limit=0.70,
        is_least=True,
        unit="%",
        detail="{xmin.pinned_per_s} tasks/s of {xmin.free_per_s}, {xmin.tasks} tasks",
    ),
    Target(
        name="tenants, another's first task",
        path="tenants.ratio",
        limit=1.5,
        detail="p50 {tenants.beside_ms.p50} ms beside {tenants.queued} of another, {tenants.alone_ms.p50} ms alone",
    ),
)


def lines(results: Mapping[str, Any]) -> list[TargetLine]:
    return [line for target in TARGETS if (line := target.line(results)) is not None]


def at(results: Mapping[str, Any], path: str) -> Any:
    """Return the number under a dotted path, or None."""
    found: Any = results
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _filled(text: str, results: Mapping[str, Any]) -> str:
    """Replace every `{path}` by its number."""
    parts = text.replace("}", "{").split("{")
    return "".join(part if index % 2 == 0 else _plain(at(results, part)) for index, part in enumerate(parts))


def _plain(value: Any) -> str:
    if not isinstance(value, int | float):
        return "?"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
