"""Procrastinate: two processes with five coroutines each; more gain nothing, because every step is a transaction."""

import logging

import driver
from procrastinate import App, PsycopgConnector

logging.getLogger("procrastinate").setLevel(logging.WARNING)
app = App(connector=PsycopgConnector(conninfo=driver.PG, min_size=2, max_size=20))


@app.task(name="hit", queue="default")
async def hit(i: int) -> None:
    driver.hit(i)


async def setup() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def fill(tasks: int) -> None:
    async with app.open_async():
        for chunk in driver.chunks(tasks):
            await hit.batch_defer_async(*[{"i": i} for i in chunk])


async def work() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=5, queues=["default"])


def left() -> int:
    return driver.count_in_postgres("select count(*) from procrastinate_jobs where status in ('todo', 'doing')")


if __name__ == "__main__":
    driver.main(setup=setup, fill=fill, work=work, left=left)
