"""Prefect: flows with tasks in 16 threads of one process, with its own server on SQLite.

It has no queue to fill: the worker starts the requested flows by itself, one after the other.
"""

import os
import threading
from pathlib import Path

import driver

FOLDER = Path(os.environ["BENCH_FOLDER"])
ASKED = FOLDER / "asked"
os.environ.update(
    PREFECT_HOME=str(FOLDER / "prefect"),
    PREFECT_LOGGING_LEVEL="ERROR",
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE="true",
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS="120",
)


def fill(nodes: int) -> None:
    ASKED.write_text(str(nodes))


def work() -> None:
    from prefect import flow, task
    from prefect.task_runners import ThreadPoolTaskRunner

    @task
    def node(i: int, *_upstream: object) -> int:
        driver.hit(i)
        return i

    @flow(task_runner=ThreadPoolTaskRunner(max_workers=16))
    def fan(base: int, last: int) -> None:
        first = node.submit(base)
        middle = [node.submit(i, first) for i in range(base + 1, last)]
        node.submit(last, middle).result()

    @flow
    def warm() -> None:
        """Start the server before the measurement begins."""

    warm()
    for base, last in driver.fans(int(ASKED.read_text())):
        fan(base, last)
    ASKED.unlink()
    threading.Event().wait()


def left() -> int:
    return int(ASKED.exists())


if __name__ == "__main__":
    driver.main(fill=fill, work=work, left=left)
