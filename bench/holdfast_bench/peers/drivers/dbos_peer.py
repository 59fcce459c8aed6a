"""DBOS: asynchronous workflows on a queue, 500 at once, polled every 0.2 s instead of every second."""

import os
import threading

import driver
from dbos import DBOS, DBOSClient


@DBOS.workflow(name="hit")
async def hit(i: int) -> None:
    driver.hit(i)


def launch() -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": driver.PG,
            "run_admin_server": False,
            "log_level": "WARNING",
            "application_version": "1",
        }
    )
    DBOS.launch()
    DBOS.register_queue("bench", polling_interval_sec=0.2, worker_concurrency=500, on_conflict="always_update")


def setup() -> None:
    launch()
    DBOS.destroy()


def fill(tasks: int) -> None:
    client = DBOSClient(system_database_url=driver.PG)
    for i in range(tasks):
        client.enqueue({"queue_name": "bench", "workflow_name": "hit"}, i)
    client.destroy()


def work() -> None:
    launch()
    threading.Event().wait()
    os._exit(0)


def left() -> int:
    return driver.count_in_postgres("select count(*) from dbos.workflow_status where status <> 'SUCCESS'")


if __name__ == "__main__":
    driver.main(setup=setup, fill=fill, work=work, left=left)
