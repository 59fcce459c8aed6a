"""taskiq on a Redis stream: two workers, 100 tasks at once, prefetch 100, results not kept."""

import driver
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(f"{driver.REDIS}/0", consumer_id="0", xread_count=100)


@broker.task(task_name="hit")
async def hit(i: int) -> None:
    driver.hit(i)


async def setup() -> None:
    await broker.startup()
    await broker.shutdown()


async def fill(tasks: int) -> None:
    await broker.startup()
    for i in range(tasks):
        await hit.kiq(i)
    await broker.shutdown()


def left() -> int:
    return driver.waiting_in_streams("taskiq")


if __name__ == "__main__":
    driver.main(setup=setup, fill=fill, left=left)
