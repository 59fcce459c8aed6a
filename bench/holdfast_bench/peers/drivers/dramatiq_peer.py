"""Dramatiq: two processes with four threads each, prefetch 200 (`dramatiq_queue_prefetch`)."""

import dramatiq
import driver
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=f"{driver.REDIS}/0")
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="hit")
def hit(i: int) -> None:
    driver.hit(i)


def fill(tasks: int) -> None:
    for i in range(tasks):
        hit.send(i)


def left() -> int:
    return int(driver.redis_client().hlen("dramatiq:default.msgs"))


if __name__ == "__main__":
    driver.main(fill=fill, left=left)
