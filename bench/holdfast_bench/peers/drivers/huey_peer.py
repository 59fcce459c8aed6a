"""Huey: two processes with two threads each, results off."""

import driver
from huey import RedisHuey

huey = RedisHuey("bench", url=f"{driver.REDIS}/0", results=False)


@huey.task(name="hit")
def hit(i: int) -> None:
    driver.hit(i)


def fill(tasks: int) -> None:
    for i in range(tasks):
        hit(i)


def left() -> int:
    return int(driver.redis_client().llen("huey.redis.bench"))


if __name__ == "__main__":
    # Tasks are registered under the name of their module.
    import huey_peer as importable

    driver.main(fill=importable.fill, left=importable.left)
