"""SAQ, on PostgreSQL with 20 coroutines a process or on Redis with 50 (`BENCH_STORE`), instead of 10."""

import logging
import os
from typing import Any

import driver
from saq import Queue, Worker

IS_REDIS = os.environ.get("BENCH_STORE") == "redis"
URL = driver.REDIS if IS_REDIS else driver.PG


async def hit(_context: Any, *, i: int) -> None:
    driver.hit(i)


async def connected() -> Any:
    queue = Queue.from_url(URL)
    await queue.connect()
    return queue


async def setup() -> None:
    await (await connected()).disconnect()


async def fill(tasks: int) -> None:
    queue = await connected()
    for i in range(tasks):
        await queue.enqueue("hit", i=i)
    await queue.disconnect()


async def work() -> None:
    logging.getLogger("saq").setLevel(logging.ERROR)
    await Worker(await connected(), functions=[("hit", hit)], concurrency=50 if IS_REDIS else 20).start()


def left() -> int:
    if IS_REDIS:
        return int(driver.redis_client().zcard("saq:default:incomplete"))
    return driver.count_in_postgres("select count(*) from saq_jobs where status <> 'complete'")


if __name__ == "__main__":
    driver.main(setup=setup, fill=fill, work=work, left=left)
