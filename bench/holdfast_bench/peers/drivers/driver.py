"""What all drivers of other engines share: the marks, the addresses, and the command line.

    python celery_peer.py setup        create the engine's own schema
    python celery_peer.py fill N       submit N tasks the fastest way the engine offers
    python celery_peer.py work         run a worker until killed (engines with their own worker program use that)
    python celery_peer.py left         for each line on stdin, print how many tasks the engine's store still has

A driver runs in the peer's own environment, where Holdfast is not installed: only the standard library and the file of
the marks may be used here.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

PG = os.environ.get("BENCH_PG", "")
REDIS = os.environ.get("BENCH_REDIS", "")
CHUNK = 1_000
FAN = 102
"""The number of nodes in one run: 1 → 100 → 1."""

Step = Callable[[], Awaitable[None] | None]


def _load_marks() -> Any:
    path = Path(__file__).resolve().parents[2] / "marks.py"
    spec = importlib.util.spec_from_file_location("bench_marks", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_marks"] = module
    spec.loader.exec_module(module)
    return module.Marks(Path(os.environ["BENCH_MARKS"]), int(os.environ["BENCH_CAPACITY"]))


_marks: Any = None


def hit(i: int | str | bytes) -> None:
    """Execute the task; every engine runs exactly this."""
    global _marks
    if _marks is None:
        _marks = _load_marks()
    _marks.hit(int(i))


def main(
    *,
    fill: Callable[[int], Awaitable[None] | None],
    left: Callable[[], Awaitable[int] | int],
    setup: Step | None = None,
    work: Step | None = None,
) -> None:
    """Execute the command line."""
    match sys.argv[1:]:
        case ["setup"]:
            _finish(setup() if setup is not None else None)
        case ["fill", tasks]:
            _finish(fill(int(tasks)))
        case ["work"]:
            assert work is not None
            _finish(work())
        case ["left"]:
            for _line in sys.stdin:
                print(_finish(left()), flush=True)
        case _:
            sys.exit(__doc__)


def chunks(tasks: int) -> list[range]:
    return [range(start, min(start + CHUNK, tasks)) for start in range(0, tasks, CHUNK)]


def fans(nodes: int) -> list[tuple[int, int]]:
    """Return the first and the last node of each run; the others depend on the first and are joined by the last."""
    return [(base, base + FAN - 1) for base in range(0, nodes - FAN + 1, FAN)]


def _finish(result: Any) -> Any:
    if not inspect.isawaitable(result):
        return result

    async def wait() -> Any:
        return await result

    return asyncio.run(wait())


def count_in_postgres(statement: str) -> int:
    """Query one number from PostgreSQL, with psycopg."""
    import psycopg

    with psycopg.connect(PG, autocommit=True) as connection:
        row = connection.execute(statement).fetchone()
    return int(row[0]) if row else 0


def redis_client() -> Any:
    import redis

    return redis.Redis.from_url(f"{REDIS}/0")


def waiting_in_streams(*names: Any) -> int:
    """Return how many entries the consumer groups of Redis streams have not acknowledged."""
    import redis

    client, found = redis_client(), 0
    for name in names:
        try:
            groups = client.xinfo_groups(name)
        except redis.ResponseError:
            continue
        found += sum(group["pending"] + (group["lag"] or 0) for group in groups)
    return found
