"""Chancy: coroutines instead of processes, 500 at once, eager polling, completions written every 0.1 s."""

import logging

import driver
from chancy import Chancy, Queue, Worker, job

log = logging.getLogger("chancy-peer")
log.setLevel(logging.ERROR)


@job()
async def hit(*, i: int) -> None:
    driver.hit(i)


async def setup() -> None:
    async with Chancy(driver.PG, log=log) as chancy:
        await chancy.migrate()


async def fill(tasks: int) -> None:
    async with Chancy(driver.PG, log=log) as chancy:
        for chunk in driver.chunks(tasks):
            async for _ in chancy.push_many([hit.job.with_kwargs(i=i) for i in chunk]):
                pass


async def work() -> None:
    async with Chancy(driver.PG, log=log) as chancy:
        queue = Queue(
            "default", concurrency=500, executor=Chancy.Executor.Async, polling_interval=1, eager_polling=True
        )
        await chancy.declare(queue, upsert=True)
        worker = Worker(chancy)
        worker.send_outgoing_interval = 0.1
        async with worker:
            await worker.wait_for_shutdown()


def left() -> int:
    return driver.count_in_postgres("select count(*) from chancy_jobs where state <> 'succeeded'")


if __name__ == "__main__":
    # Jobs are stored by import path, so the module must be importable by name.
    import chancy_peer as importable

    driver.main(setup=importable.setup, fill=importable.fill, work=importable.work, left=importable.left)
