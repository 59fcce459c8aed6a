"""Dataset writers for user code: rows are staged while the attempt runs, and committed with its completion.

Rows are read and checked where the user's code runs, batch by batch; only the staging of a batch runs elsewhere. A part
is committed only if all of it was staged: a write that raised is not committed, even if user code catches the error.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeAlias

from holdfast.core.datasets.dataset import Commit, Dataset, Mode, valid_partition
from holdfast.core.datasets.rows import RowEncoder
from holdfast.engine.datasets.declare import Generation, count_rows, declare
from holdfast.engine.datasets.stage import AttemptLease, StagedPart, open_part, stage_batch
from holdfast.engine.identity.tenants import find_tenant
from holdfast.errors import Invalid
from holdfast.store.database import Database

Datasets: TypeAlias = Mapping[tuple[str, int], Dataset]
"""The datasets that an app declares, by name and version."""


class DeclaredDatasets:
    """The datasets of an app on one database."""

    def __init__(self, database: Database, tenant: str, datasets: Datasets) -> None:
        self.database = database
        self._tenant = tenant
        self._tenant_id = 0
        self._datasets = datasets
        self._generations: dict[tuple[str, int], Generation] = {}

    async def declare(self) -> None:
        """Create every dataset version that the app declares, where it is missing."""
        for dataset in self._datasets.values():
            await self.generation(dataset)

    def find(self, name: str, version: int | None) -> Dataset:
        """Return one version that the app declares, or its newest."""
        versions = [known for known_name, known in self._datasets if known_name == name]
        wanted = max(versions, default=0) if version is None else version
        if wanted not in versions:
            shown = name if version is None else f"version {version} of {name}"
            raise Invalid(
                f"This app declares no dataset {shown}.",
                code="dataset_not_declared",
                advice=f'Declare it: app.dataset("{name}", version=…, columns=…).',
            )
        return self._datasets[name, wanted]

    async def generation(self, dataset: Dataset) -> Generation:
        identity = (dataset.name, dataset.version)
        if (known := self._generations.get(identity)) is None:
            if self._tenant_id == 0:
                self._tenant_id = (await find_tenant(self.database, self._tenant)).tenant_id
            known = await declare(self.database, self._tenant_id, dataset)
            self._generations[identity] = known
        return known


class NoDatasets(DeclaredDatasets):
    """Datasets of a worker that uses HTTP: there is no table to write to, so every use raises `Invalid`."""

    def __init__(self) -> None:
        """Keep nothing."""

    async def declare(self) -> None:
        """Do nothing: there is no database to declare datasets in."""

    def find(self, name: str, version: int | None) -> Dataset:
        raise Invalid(
            f"The dataset {name} cannot be written by a worker that speaks HTTP.",
            code="datasets_need_database",
            advice="Run workers of this action with the database's URL in HOLDFAST_URL.",
        )


class AttemptDatasets:
    """What one attempt writes to datasets; `commits` are sent with its completion."""

    def __init__(self, declared: DeclaredDatasets, lease: AttemptLease) -> None:
        self.declared = declared
        self.commits: list[Commit] = []
        self._lease = lease
        self._numbers = itertools.count()

    async def open(self, dataset: Dataset, mode: Mode, partition: str) -> StagedPart:
        generation = await self.declared.generation(dataset)
        part = StagedPart(self._lease, generation, mode, next(self._numbers), partition)
        await open_part(self.declared.database, part)
        return part

    async def stage(self, part: StagedPart, records: list[tuple[Any, ...]]) -> None:
        await stage_batch(self.declared.database, part, records)

    def close(self, part: StagedPart) -> int:
        generation_id = part.generation.generation_id
        self.commits.append(Commit(generation_id=generation_id, mode=part.mode, part=part.number, rows=part.rows))
        return part.rows

    async def cut_over(self, dataset: Dataset, *, force: bool) -> None:
        generation = await self.declared.generation(dataset)
        self.commits.append(
            Commit(
                generation_id=generation.generation_id, mode=Mode.CUT_OVER, part=next(self._numbers), is_forced=force
            )
        )

    async def count(self, dataset: Dataset, partition: str | None) -> int:
        return await count_rows(self.declared.database, await self.declared.generation(dataset), partition)


class _Writer:
    def __init__(
        self, writing: AttemptDatasets, dataset: Dataset, call: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self.view = dataset.view
        self.table = dataset.table
        self._writing = writing
        self._dataset = dataset
        self._call = call


class AsyncWriter(_Writer):
    """The writer of `async def` actions. `call` runs a coroutine on the loop that has the database."""

    async def append(self, rows: Iterable[Any] | AsyncIterable[Any], *, partition: str = "") -> int:
        return await self._write(Mode.APPEND, rows, partition)

    async def replace(self, rows: Iterable[Any] | AsyncIterable[Any], *, partition: str = "") -> int:
        return await self._write(Mode.REPLACE, rows, partition)

    async def cut_over(self, *, force: bool = False) -> None:
        await self._call(self._writing.cut_over(self._dataset, force=force))

    async def count(self, partition: str | None = None) -> int:
        return int(await self._call(self._writing.count(self._dataset, partition)))

    async def _write(self, mode: Mode, rows: Iterable[Any] | AsyncIterable[Any], partition: str) -> int:
        writing, encoder = self._writing, RowEncoder(self._dataset)
        part = await self._call(writing.open(self._dataset, mode, valid_partition(partition)))
        if isinstance(rows, AsyncIterable):
            async for row in rows:
                encoder.add(row)
                if encoder.is_full:
                    await self._call(writing.stage(part, encoder.take()))
            rows = ()
        for batch in encoder.batches(rows):
            await self._call(writing.stage(part, batch))
        return writing.close(part)


class BlockingWriter(_Writer):
    """The writer of plain functions in a thread or a process. `call` waits for a coroutine that runs elsewhere."""

    def append(self, rows: Iterable[Any], *, partition: str = "") -> int:
        return self._write(Mode.APPEND, rows, partition)

    def replace(self, rows: Iterable[Any], *, partition: str = "") -> int:
        return self._write(Mode.REPLACE, rows, partition)

    def cut_over(self, *, force: bool = False) -> None:
        self._call(self._writing.cut_over(self._dataset, force=force))

    def count(self, partition: str | None = None) -> int:
        return int(self._call(self._writing.count(self._dataset, partition)))

    def _write(self, mode: Mode, rows: Iterable[Any], partition: str) -> int:
        writing, encoder = self._writing, RowEncoder(self._dataset)
        part = self._call(writing.open(self._dataset, mode, valid_partition(partition)))
        for batch in encoder.batches(rows):
            self._call(writing.stage(part, batch))
        return writing.close(part)


def here(work: Coroutine[Any, Any, Any]) -> Awaitable[Any]:
    """Run the coroutine on the event loop that awaits it."""
    return work


def waiting(loop: asyncio.AbstractEventLoop) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Return a function that runs a coroutine on `loop` and blocks this thread until it ends."""
    return lambda work: asyncio.run_coroutine_threadsafe(work, loop).result()


class WriterLoop:
    """An event loop in its own thread, for processes of isolated attempts, whose loops end with each attempt."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="holdfast-datasets", daemon=True).start()

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def awaitable(self, work: Coroutine[Any, Any, Any]) -> Awaitable[Any]:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
