"""RQ: two `SimpleWorker`s, which do not fork for each job, results not kept."""

import driver
from rq import Queue


def hit(i: int) -> None:
    driver.hit(i)


def fill(tasks: int) -> None:
    queue = Queue("default", connection=driver.redis_client())
    for chunk in driver.chunks(tasks):
        queue.enqueue_many([Queue.prepare_data("rq_peer.hit", (i,), result_ttl=0) for i in chunk])


def left() -> int:
    client = driver.redis_client()
    return int(client.llen("rq:queue:default") + client.zcard("rq:wip:default"))


if __name__ == "__main__":
    driver.main(fill=fill, left=left)
