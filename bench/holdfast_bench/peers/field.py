"""The other engines that are measured, their requirements, and the commands of their workers.

`tasks_max` limits the drain of slow engines, so that a run ends; rates do not depend on it. Versions are pinned,
because a comparison must be repeatable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.errors import Invalid

PSYCOPG = "psycopg[binary,pool]==3.3.8"
_OWN_WORKER = ("{bin}/python", "{driver}", "work")
_TASKIQ = ("--max-async-tasks", "100", "--max-prefetch", "100")
_CELERY = ("--without-gossip", "--without-mingle", "--without-heartbeat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One engine in one configuration. In `command`, {bin} is its environment, {driver} its file, {i} the process."""

    name: str
    module: str
    requires: tuple[str, ...]
    tasks_max: int
    needs_redis: bool = False
    processes: int = 2
    command: tuple[str, ...] = _OWN_WORKER
    environment: Mapping[str, str] = field(default_factory=dict)
    is_flow: bool = False
    """Whether it runs graphs: then it drains the nodes of runs of 1 → 100 → 1, and `tasks_max` counts nodes."""


def _words(command: str, *more: str) -> tuple[str, ...]:
    return (*command.split(), *more)


def chosen_peers(names: Sequence[str]) -> tuple[Peer, ...]:
    """Return the peers of these names, or all if none is named."""
    known = {peer.name: peer for peer in PEERS}
    for name in names:
        if name not in known:
            raise Invalid(f"There is no peer {name!r}.", code="peer_not_found", advice=f"Known: {', '.join(known)}.")
    return tuple(known[name] for name in names) or PEERS


FAN_NODES = 102
CELERY = ("celery[redis]==5.7.0", "hiredis")
DBOS = ("dbos==3.3.0", "psycopg[binary]==3.3.8")
SAQ = ("saq[postgres,redis,hiredis]==0.26.4", PSYCOPG)

PEERS = (
    Peer(
        name="pgqueuer",
        module="pgqueuer_peer",
        requires=("pgqueuer[asyncpg]==1.6.0", "asyncpg==0.32.0", "uvloop"),
        tasks_max=150_000,
    ),
    Peer(
        name="procrastinate",
        module="procrastinate_peer",
        requires=("procrastinate==3.10.0", PSYCOPG),
        tasks_max=3_000,
    ),
    Peer(name="chancy", module="chancy_peer", requires=("chancy[cli]==0.26.0", PSYCOPG), tasks_max=15_000),
    Peer(name="dbos", module="dbos_peer", requires=DBOS, tasks_max=2_500),
    Peer(
        name="absurd",
        module="absurd_peer",
        requires=("absurd-sdk==0.5.1", "absurdctl==0.5.1", PSYCOPG),
        tasks_max=6_000,
        processes=6,
    ),
    Peer(name="saq-postgres", module="saq_peer", requires=SAQ, tasks_max=2_500),
    Peer(
        name="saq-redis",
        module="saq_peer",
        requires=SAQ,
        tasks_max=7_000,
        needs_redis=True,
        environment={"BENCH_STORE": "redis"},
    ),
    Peer(
        name="celery",
        module="celery_peer",
        requires=CELERY,
        tasks_max=6_000,
        needs_redis=True,
        command=_words("{bin}/celery -A celery_peer worker -P solo -n w{i}@h -l ERROR", *_CELERY),
    ),
    Peer(
        name="dramatiq",
        module="dramatiq_peer",
        requires=("dramatiq[redis]==2.2.1", "hiredis"),
        tasks_max=10_000,
        needs_redis=True,
        processes=1,
        command=_words("{bin}/dramatiq dramatiq_peer -p 2 -t 4"),
        environment={"dramatiq_queue_prefetch": "200"},
    ),
    Peer(
        name="taskiq",
        module="taskiq_peer",
        requires=("taskiq==0.13.0", "taskiq-redis==1.2.4", "hiredis", "uvloop"),
        tasks_max=12_000,
        needs_redis=True,
        processes=1,
        command=_words("{bin}/taskiq worker taskiq_peer:broker -w 2 --log-level ERROR --no-parse", *_TASKIQ),
    ),
    Peer(
        name="arq",
        module="arq_peer",
        requires=("arq==0.28.0", "hiredis"),
        tasks_max=4_000,
        needs_redis=True,
        command=_words("{bin}/arq arq_peer.WorkerSettings"),
    ),
    Peer(
        name="huey",
        module="huey_peer",
        requires=("huey==3.5.4", "redis", "hiredis"),
        tasks_max=12_000,
        needs_redis=True,
        command=_words("{bin}/python -m huey.bin.huey_consumer huey_peer.huey -w 2 -k thread -n -q"),
    ),
    Peer(
        name="rq",
        module="rq_peer",
        requires=("rq==2.12.0", "hiredis"),
        tasks_max=1_500,
        needs_redis=True,
        command=_words("{bin}/rq worker -q -w rq.worker.SimpleWorker --url {redis}/0 default"),
    ),
    Peer(
        name="streaq",
        module="streaq_peer",
        requires=("streaq==7.2.0", "redis"),
        tasks_max=4_000,
        needs_redis=True,
    ),
    Peer(
        name="dbos-flow",
        module="dbos_flow_peer",
        requires=DBOS,
        tasks_max=10 * FAN_NODES,
        is_flow=True,
    ),
    Peer(
        name="celery-chord",
        module="celery_flow_peer",
        requires=CELERY,
        tasks_max=50 * FAN_NODES,
        needs_redis=True,
        command=_words("{bin}/celery -A celery_flow_peer worker -P solo -n w{i}@h -l ERROR", *_CELERY),
        is_flow=True,
    ),
    Peer(
        name="prefect-flow",
        module="prefect_flow_peer",
        requires=("prefect==3.8.8", "fastapi>=0.139,<0.140"),
        tasks_max=2 * FAN_NODES,
        processes=1,
        is_flow=True,
    ),
)
