"""Client interface of datasets: build versions, inspect them, cut over, roll back, drop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.authoring.action import Action, BoundAction
from holdfast.core.datasets.dataset import Dataset
from holdfast.engine.datasets import declare
from holdfast.engine.datasets.declare import CommitView, Generation, GenerationView
from holdfast.engine.use_cases import datasets as dataset_use_cases

if TYPE_CHECKING:
    from holdfast.client.client import Client


class DatasetClient:
    """`client.datasets`. A version is identified by its dataset and number."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def declare(self, dataset: Dataset) -> Generation:
        """Create a version if it does not exist, without waiting for a worker to do so."""
        engine = self._client.engine
        return await declare.declare(engine.database, engine.tenant_id, dataset)

    async def build(self, dataset: Dataset, work: Any, inputs: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Enqueue the work that builds a version: tasks of an action, or runs of a flow, one per input.

        The version cannot be cut over before all of it completed; rolling it back cancels the unfinished work.
        """
        generation = await self.declare(dataset)
        client, engine = self._client, self._client.engine
        await client.make_ready(work)
        async with engine.database.transaction() as session:
            handles: list[Any]
            if isinstance(work, Action | BoundAction | str):
                handles = await client.enqueue_many(work, inputs, connection=session)
                ids = [int(task.task_id) for task in handles]
            else:
                handles = await client.start_many(work, inputs, connection=session)
                ids = [int(run.run_id) for run in handles]
            await declare.add_builds(session, generation, ids)
        await client.wake()
        return handles

    async def generations(self, name: str | None = None) -> list[GenerationView]:
        """List every generation of every dataset, or of one."""
        engine = self._client.engine
        return await declare.list_generations(engine.database, engine.tenant_id, name)

    async def commits(self, name: str, *, limit: int = 20) -> list[CommitView]:
        """List the last commits to a dataset."""
        engine = self._client.engine
        return await declare.recent_commits(engine.database, engine.tenant_id, name, limit=limit)

    async def cut_over(
        self, name: str, version: int, *, force: bool = False, reason: str = "", actor: str = "client"
    ) -> bool:
        """Make a version visible to readers, atomically; return whether another one was visible before."""
        return await dataset_use_cases.cut_over(
            self._client.engine, name, version, actor=actor, reason=reason, is_forced=force
        )

    async def roll_back(
        self, name: str, version: int, *, keep: bool = False, reason: str = "", actor: str = "client"
    ) -> int | None:
        """Take a version out of use and cancel its unfinished work; return the version that is shown instead."""
        return await dataset_use_cases.roll_back(
            self._client.engine, name, version, actor=actor, reason=reason, is_kept=keep
        )

    async def drop(self, name: str, version: int, *, reason: str = "", actor: str = "client") -> None:
        """Drop the tables of a superseded or kept version."""
        await dataset_use_cases.drop(self._client.engine, name, version, actor=actor, reason=reason)
