"""Absurd: blocking workers that claim 100 at a time; six processes, as two leave half of its speed unused."""

import driver
import psycopg
from absurd_sdk import Absurd
from absurdctl import BUNDLED_SCHEMA_SQL


def connected() -> Absurd:
    absurd = Absurd(driver.PG, queue_name="bench")

    @absurd.register_task(name="hit")
    def hit(params: dict[str, int], _context: object) -> None:
        driver.hit(params["i"])

    return absurd


def setup() -> None:
    with psycopg.connect(driver.PG, autocommit=True) as connection:
        connection.execute(BUNDLED_SCHEMA_SQL)
    connected().create_queue("bench")


def fill(tasks: int) -> None:
    absurd = connected()
    for i in range(tasks):
        absurd.spawn("hit", {"i": i})


def work() -> None:
    connected().start_worker(batch_size=100, poll_interval=0.05)


def left() -> int:
    return driver.count_in_postgres("select count(*) from absurd.t_bench where state <> 'completed'")


if __name__ == "__main__":
    driver.main(setup=setup, fill=fill, work=work, left=left)
