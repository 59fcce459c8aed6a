"""PgQueuer: batches of 1,000 instead of 10, a pool of four connections, uvloop."""

import logging
from typing import Any

import asyncpg
import driver
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

logging.disable(logging.INFO)


async def setup() -> None:
    connection = await asyncpg.connect(driver.PG)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


async def fill(tasks: int) -> None:
    connection = await asyncpg.connect(driver.PG)
    queries = Queries(AsyncpgDriver(connection))
    for chunk in driver.chunks(tasks):
        await queries.enqueue(["hit"] * len(chunk), [str(i).encode() for i in chunk], [0] * len(chunk))
    await connection.close()


def work() -> None:
    async def run() -> None:
        pool = await asyncpg.create_pool(driver.PG, min_size=2, max_size=4)
        queue = PgQueuer.from_asyncpg_pool(pool)

        @queue.entrypoint("hit")
        async def hit(job: Any) -> None:
            driver.hit(job.payload)

        await queue.run(batch_size=1000)

    uvloop.run(run())


async def left() -> int:
    connection = await asyncpg.connect(driver.PG)
    found = await connection.fetchval("select count(*) from pgqueuer")
    await connection.close()
    return int(found)


if __name__ == "__main__":
    driver.main(setup=setup, fill=fill, work=work, left=left)
