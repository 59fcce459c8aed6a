"""Celery: two workers of the `solo` pool, prefetch 64, no gossip, results ignored, tasks acknowledged early."""

import driver
from celery import Celery

app = Celery("celery_peer", broker=f"{driver.REDIS}/0")
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=64,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task(name="hit")
def hit(i: int) -> None:
    driver.hit(i)


def fill(tasks: int) -> None:
    for i in range(tasks):
        hit.delay(i)


def left() -> int:
    client = driver.redis_client()
    return int(client.llen("celery") + client.hlen("unacked"))


if __name__ == "__main__":
    driver.main(fill=fill, left=left)
