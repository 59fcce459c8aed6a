"""streaq: sixteen tasks at once in each of two processes, results not kept."""

import driver
from streaq import Worker

worker = Worker(redis_url=f"{driver.REDIS}/0", concurrency=16)


@worker.task(name="hit", ttl=0)
async def hit(i: int) -> None:
    driver.hit(i)


async def fill(tasks: int) -> None:
    async with worker:
        for chunk in driver.chunks(tasks):
            await worker.enqueue_many([hit.enqueue(i) for i in chunk])


async def work() -> None:
    await worker.run_async()


def left() -> int:
    client = driver.redis_client()
    return driver.waiting_in_streams(*client.scan_iter("streaq:default:queues:*", _type="stream"))


if __name__ == "__main__":
    driver.main(fill=fill, work=work, left=left)
