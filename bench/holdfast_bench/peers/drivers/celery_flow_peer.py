"""Celery's canvas on Redis: a chain of one task, a chord of many, and its callback. The chord needs stored results."""

import driver
from celery import Celery, chain, chord

app = Celery("celery_flow_peer", broker=f"{driver.REDIS}/0", backend=f"{driver.REDIS}/1")
app.conf.update(
    worker_prefetch_multiplier=64,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    result_expires=600,
)


@app.task(name="node")
def node(i: int) -> int:
    driver.hit(i)
    return i


def fill(nodes: int) -> None:
    for base, last in driver.fans(nodes):
        middle = chord([node.si(i) for i in range(base + 1, last)], node.si(last))
        chain(node.si(base), middle).apply_async()


def left() -> int:
    client = driver.redis_client()
    return int(client.llen("celery") + client.hlen("unacked"))


if __name__ == "__main__":
    driver.main(fill=fill, left=left)
