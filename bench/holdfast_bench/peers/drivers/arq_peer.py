"""arq: 100 jobs at once instead of 10, polled every 20 ms, results not kept."""

from typing import Any

import driver
from arq import create_pool
from arq.connections import RedisSettings

SETTINGS = RedisSettings.from_dsn(f"{driver.REDIS}/0")


async def hit(_context: Any, i: int) -> None:
    driver.hit(i)


class WorkerSettings:
    functions = (hit,)
    redis_settings = SETTINGS
    max_jobs = 100
    poll_delay = 0.02
    keep_result = 0


async def fill(tasks: int) -> None:
    pool = await create_pool(SETTINGS)
    for i in range(tasks):
        await pool.enqueue_job("hit", i)
    await pool.aclose()


def left() -> int:
    return int(driver.redis_client().zcard("arq:queue"))


if __name__ == "__main__":
    driver.main(fill=fill, left=left)
