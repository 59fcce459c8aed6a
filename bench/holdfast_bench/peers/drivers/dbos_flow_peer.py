"""DBOS: a workflow for each fan, every node a child workflow on a queue, polled every 0.05 s instead of 1 s."""

import os
import threading
from collections.abc import Iterable

import driver
from dbos import DBOS, DBOSClient


@DBOS.workflow(name="node")
async def node(i: int) -> int:
    driver.hit(i)
    return i


@DBOS.workflow(name="fan")
async def fan(base: int, last: int) -> None:
    await stage([base])
    await stage(range(base + 1, last))
    await stage([last])


async def stage(numbers: Iterable[int]) -> None:
    """Run nodes and wait for all of them."""
    handles = [await DBOS.enqueue_workflow_async("nodes", node, i) for i in numbers]
    for handle in handles:
        await handle.get_result()


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
    for queue in ("nodes", "fans"):
        DBOS.register_queue(queue, polling_interval_sec=0.05, on_conflict="always_update")


def setup() -> None:
    launch()
    DBOS.destroy()


def fill(nodes: int) -> None:
    client = DBOSClient(system_database_url=driver.PG)
    for base, last in driver.fans(nodes):
        client.enqueue({"queue_name": "fans", "workflow_name": "fan"}, base, last)
    client.destroy()


def work() -> None:
    launch()
    threading.Event().wait()
    os._exit(0)


def left() -> int:
    return driver.count_in_postgres("select count(*) from dbos.workflow_status where status <> 'SUCCESS'")


if __name__ == "__main__":
    driver.main(setup=setup, fill=fill, work=work, left=left)
