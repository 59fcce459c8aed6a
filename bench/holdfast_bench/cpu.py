"""Processor time of processes, read from /proc. Where that cannot be read, nothing is reported."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from holdfast_bench.arena import Arena

WORKERS, BACKENDS = "workers", "backends"
_BACKENDS = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"


def of_processes(pids: Iterable[int]) -> dict[int, float]:
    """Return the processor seconds used so far, by process id; ended or foreign processes are left out."""
    found: dict[int, float] = {}
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def children_of(pid: int) -> list[int]:
    """Return the processes started by this one; none where they cannot be seen."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found.append(int(folder.name))
    return found


def resident_bytes(pid: int) -> int | None:
    """Return the resident memory of a process."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


async def of_backends(arena: Arena) -> dict[int, float]:
    """Return the processor seconds of our database's server processes; empty if the server is on another machine."""
    return of_processes([row["pid"] for row in await arena.fetch(_BACKENDS)])


async def cpu_seconds(arena: Arena, pids: Iterable[int]) -> dict[str, dict[int, float]]:
    return {WORKERS: of_processes(pids), BACKENDS: await of_backends(arena)}


def cores_used(
    before: Mapping[str, Mapping[int, float]], after: Mapping[str, Mapping[int, float]], seconds: float
) -> dict[str, float]:
    """Return the cores used on average between two readings, by kind; only processes in both readings count."""
    return {
        kind: round(
            sum(used - before[kind][pid] for pid, used in after[kind].items() if pid in before[kind]) / seconds, 4
        )
        for kind in after
    }
