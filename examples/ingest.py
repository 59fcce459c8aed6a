"""Files into a PostgreSQL table, and a new version of the table under the eyes of its readers.

    HOLDFAST_ENV=local python examples/ingest.py

writes a few CSV files, ingests them, then builds a second version with one column more while a reader polls, and cuts
over. It runs on HOLDFAST_URL, or on the embedded database (`HOLDFAST_ENV=local`). Nothing here is a toy: kill it at any
moment and start it again. It goes on with the runs that are there, which it finds by their keys, waits for the lease of
what was killed, and the table holds each line of each file once.
"""

from __future__ import annotations

import asyncio
import csv
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg

import holdfast as hf

app = hf.App("ingest")

LEASE_SECONDS = 5.0
LOOK_SECONDS = 0.1

ORDERS = {"order_id": "bigint", "day": "date", "cents": "bigint"}
orders = app.dataset("orders", version=1, columns=ORDERS, key="order_id")
orders_with_source = app.dataset("orders", version=2, columns={**ORDERS, "source": "text"}, key="order_id")


@app.action
def list_files(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).glob("*.csv"))


@app.action(max_retries=3, timeout="5m")
def ingest_file(ctx: hf.Context, path: str, version: int) -> dict[str, Any]:
    """One file is one partition: ingested again, it replaces exactly what came from it before."""
    rows = ctx.dataset("orders", version).replace(read(path, version), partition=Path(path).name)
    return {"file": path, "rows": rows}


def read(path: str, version: int) -> Iterator[dict[str, Any]]:
    """The lines of a file, one by one: a large one is never whole in memory."""
    with Path(path).open(newline="") as file:
        for line in csv.DictReader(file):
            row = {"order_id": int(line["order_id"]), "day": line["day"], "cents": int(line["cents"])}
            yield row | {"source": Path(path).name} if version > 1 else row


@app.action
def check_counts(ctx: hf.Context, files: list[dict[str, Any]], version: int) -> int:
    """What was committed must be what the files held."""
    given, found = sum(file["rows"] for file in files), ctx.dataset("orders", version).count()
    if given != found:
        raise hf.Fatal(f"{given} lines were read and {found} rows are there")
    return int(found)


@app.action
def publish(ctx: hf.Context, rows: int, version: int) -> int:
    """Readers see this version from the completion of this task on."""
    ctx.dataset("orders", version).cut_over()
    return rows


@app.flow
def ingest(folder: str, version: int):  # type: ignore[no-untyped-def]
    paths = list_files(folder)
    files = ingest_file.node(map_over="path", concurrency=4).map(path=paths, version=version)
    return publish(rows=check_counts(files=files, version=version), version=version)


async def work(run: hf.Run) -> str:
    """Work until a run is over; a fleet of `holdfast work examples/ingest.py:app` would do it just as well."""
    if (await run.show()).state == "failed":
        await run.retry("started again")
    async with app.processor(worker_id="example", lease_seconds=LEASE_SECONDS) as processor:
        while (await run.show()).ended_at is None:
            if not (await processor.process_once()).processed:
                await asyncio.sleep(LOOK_SECONDS)
    return await run.wait()


async def story(folder: Path, say: Callable[[str], None] = print) -> set[tuple[int, int]]:
    """The whole example; answers every (rows, columns) that the polling reader saw."""
    looks: set[tuple[int, int]] = set()
    async with app.client() as client:
        say("Two CSV files are ingested into the table `orders`, version 1:")
        write_files(folder, {"monday": range(1, 41), "tuesday": range(41, 101)})
        if await shown(client) == 2:
            say("version 2 is there: an earlier start got that far")
        else:
            first = await client.start(ingest.options(key="orders 1"), folder=str(folder), version=1)
            say(f"version 1 {await work(first)} with {await first.result()} rows, one task per file\n")
            say("Version 2 gets a column more. It is built beside version 1, which a reader polls meanwhile:")
            await renew(client, folder, looks, say)

        write_files(folder, {"wednesday": range(101, 141)})
        again = await client.start(ingest, folder=str(folder), version=2)
        await work(again)
        rows = await again.result()
        say(f"One file shrank; ingested again, it replaced exactly its own rows: there are {rows} now.\n")
        say("Why it matters: rows appear with the completion of their task or not at all, so a killed worker leaves no")
        say("half a file; and readers change versions in one moment. Kill this program and start it again to see.")
        say("Look at it:  holdfast dataset list   holdfast dataset show orders   docs/datasets.md")
    return looks


async def renew(client: hf.Client, folder: Path, looks: set[tuple[int, int]], say: Callable[[str], None]) -> None:
    """Build the second version beside the first, from one file more, while somebody reads."""
    write_files(folder, {"wednesday": range(101, 151)})
    reader = asyncio.ensure_future(poll(client, looks))
    keyed = ingest.options(key="orders 2")
    [build] = await client.datasets.build(orders_with_source, keyed, [{"folder": str(folder), "version": 2}])
    say(f"version 2 {await work(build)} with {await build.result()} rows, and was cut over to by its last task")
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    say(f"the reader saw only whole versions, as (rows, columns): {', '.join(map(str, sorted(looks)))}\n")


async def shown(client: hf.Client) -> int | None:
    """The version that readers see now; what went before takes no more rows."""
    await client.datasets.declare(orders)
    current = (one.version for one in await client.datasets.generations("orders") if one.state == "current")
    return next(current, None)


async def poll(client: hf.Client, looks: set[tuple[int, int]]) -> None:
    """Any reader of the view, with a connection of its own: it knows nothing of versions, or of Holdfast."""
    reader = await asyncpg.connect(client.database_url)
    try:
        while True:
            looks.add(await look(reader))
    except asyncio.CancelledError:
        looks.add(await look(reader))
    finally:
        await reader.close()


async def look(reader: asyncpg.Connection) -> tuple[int, int]:
    rows = await reader.fetch("select * from holdfast_data.orders")
    return len(rows), len(rows[0]) if rows else 0


def write_files(folder: Path, days: dict[str, range]) -> None:
    for number, (day, order_ids) in enumerate(days.items()):
        with (folder / f"{day}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["order_id", "day", "cents"])
            writer.writerows([order_id, f"2026-11-{16 + number}", order_id * 100] for order_id in order_ids)


if __name__ == "__main__":
    files = Path(tempfile.gettempdir(), "holdfast-ingest")  # the same for every start: runs go on with their files
    files.mkdir(exist_ok=True)
    asyncio.run(story(files))
