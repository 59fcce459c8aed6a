"""A helper process: workers under their supervisor, as `holdfast work` runs them. Orders come as one line on stdin.

It ends when its stdin closes, so that it never outlives the benchmark.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading

import msgspec

from holdfast.settings.settings import LogSettings, Settings, WorkerSettings
from holdfast.worker.supervisor.supervisor import run_workers
from holdfast_bench import app as bench_app


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """The orders of a helper process. Every setting that is not listed here has its default."""

    url: str
    marks: str
    capacity: int
    processes: int
    slots: int
    lease_seconds: float
    heartbeat_seconds: float
    has_loops: bool
    tenant: str = "default"

    def settings(self) -> Settings:
        worker = WorkerSettings(
            slots=self.slots, lease_seconds=self.lease_seconds, heartbeat_seconds=self.heartbeat_seconds
        )
        # The benchmark checks durability itself, and its output shows its own progress, not the log of its workers.
        return Settings(
            url=self.url,
            env="local",
            tenant=self.tenant,
            unsafe=True,
            worker=worker,
            log=LogSettings(level="error"),
        )


def main() -> int:
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)
    os.environ |= {
        bench_app.MARKS_VARIABLE: orders.marks,
        bench_app.CAPACITY_VARIABLE: str(orders.capacity),
    }
    logging.basicConfig(level=logging.ERROR)
    threading.Thread(target=_stop_when_stdin_closes, daemon=True).start()
    return run_workers(
        bench_app.REF,
        orders.settings(),
        processes=orders.processes,
        slots=orders.slots,
        queues=[bench_app.QUEUE, bench_app.MENDED_QUEUE],
        loops=orders.has_loops,
    )


def _stop_when_stdin_closes() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
