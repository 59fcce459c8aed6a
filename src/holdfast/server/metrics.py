"""`/metrics` in the Prometheus text format: the caller's tenant, and this process.

Written without a library: a page of gauges and counters needs none, and a global registry would mix tenants.
docs/metrics.md lists every metric; a test compares them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from starlette.responses import Response

from holdfast.core.webhooks import KINDS
from holdfast.engine.queries.metrics import Measured
from holdfast.server.auth.caller import Access
from holdfast.server.endpoint import ApiRequest, Endpoint
from holdfast.store.pool import PoolUse

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ENDINGS = {
    "completed": "task.completed",
    "failed": "task.failed",
    "retrying": "task.retrying",
    "canceled": "task.canceled",
    "released": "task.released",
}
"""How an attempt can end, and its event; a lost attempt is also retrying or failed."""

Sample = tuple[dict[str, str], float | None]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. A sample has labels and a value; None is left out."""

    name: str
    kind: str
    help: str
    samples: Iterable[Sample] = field(default_factory=list)


async def metrics(request: ApiRequest) -> Response:
    """Return every metric of the caller's tenant."""
    began = time.monotonic()
    server_state = request.server_state
    measured = await server_state.measure.read(request.engine.database, request.caller.tenant_id)
    output = [
        *of_work(measured),
        *of_process(request.engine.database.use, server_state.lag.seconds, time.monotonic() - began),
    ]
    return Response(page(output), media_type=MEDIA_TYPE, headers={"cache-control": "no-store"})


def of_work(measured: Measured) -> Iterator[Metric]:
    """Yield the metrics of a tenant's queues, workers and attempts."""

    def per_queue(name: str) -> list[Sample]:
        return [({"queue": view.name}, getattr(view, name)) for view in measured.queues]

    gauge = "gauge"
    yield Metric(
        "holdfast_queue_depth",
        gauge,
        "Tasks that wait in a queue, including those not yet due, counted up to a bound.",
        per_queue("queued"),
    )
    yield Metric(
        "holdfast_queue_partial",
        gauge,
        "1 if more tasks wait in a queue than were counted.",
        [({"queue": view.name}, "queued" in view.partial) for view in measured.queues],
    )
    yield Metric("holdfast_queue_running", gauge, "Running tasks of a queue.", per_queue("running"))
    yield Metric("holdfast_queue_retrying", gauge, "Tasks of a queue that wait for a retry.", per_queue("retrying"))
    yield Metric("holdfast_queue_delayed", gauge, "Tasks of a queue that are not due yet.", per_queue("delayed"))
    yield Metric(
        "holdfast_queue_oldest_seconds", gauge, "Age of the task that is next in a queue.", per_queue("oldest_seconds")
    )
    yield Metric("holdfast_queue_paused", gauge, "1 if a queue is paused.", per_queue("paused"))
    yield Metric("holdfast_queue_workers", gauge, "Active workers that serve a queue.", per_queue("workers"))
    states = measured.workers
    yield Metric("holdfast_workers", gauge, "Present workers.", [({"state": s.state}, s.workers) for s in states])
    yield Metric(
        "holdfast_worker_slots", gauge, "Slots of the present workers.", [({"state": s.state}, s.slots) for s in states]
    )
    yield Metric(
        "holdfast_workers_unhealthy",
        gauge,
        "Present workers whose probes fail.",
        [({}, sum(s.unhealthy for s in states))],
    )
    yield Metric(
        "holdfast_attempts_total",
        "counter",
        "Attempts that ended, since the first scrape of this process.",
        [({"outcome": outcome}, measured.events.get(kind, 0)) for outcome, kind in ENDINGS.items()],
    )
    yield Metric(
        "holdfast_events_total",
        "counter",
        "Events, since the first scrape of this process.",
        [({"kind": kind}, measured.events.get(kind, 0)) for kind in sorted(KINDS)],
    )
    yield Metric(
        "holdfast_metrics_behind", gauge, "1 while some events are not counted yet.", [({}, measured.is_behind)]
    )


def of_process(use: PoolUse, lag_seconds: float, read_seconds: float) -> Iterator[Metric]:
    """Yield the metrics of this server process."""
    gauge = "gauge"
    pool: list[Sample] = [({"state": name}, getattr(use, name)) for name in ("open", "in_use", "waiting")]
    yield Metric(
        "holdfast_pool_connections", gauge, "Connections of this process, and callers that wait for one.", pool
    )
    yield Metric("holdfast_pool_size", gauge, "Maximum number of connections of this process.", [({}, use.size)])
    yield Metric("holdfast_loop_lag_seconds", gauge, "Longest recent delay of the event loop.", [({}, lag_seconds)])
    yield Metric("holdfast_metrics_read_seconds", gauge, "Time taken to read these metrics.", [({}, read_seconds)])


def page(metrics: Iterable[Metric]) -> str:
    """Format metrics as text."""
    lines = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        lines += [
            f"{metric.name}{_labels(labels)} {_number(value)}" for labels, value in metric.samples if value is not None
        ]
    return "\n".join(lines) + "\n"


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, bool) or float(value).is_integer() else repr(float(value))


ENDPOINTS = (Endpoint(method="GET", path="/metrics", access=Access.VIEWER, handler=metrics),)
