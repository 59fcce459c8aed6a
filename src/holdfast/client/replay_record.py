"""Stand-in for the database during a replay: it answers from the record, and nothing is written or sent.

Effects are found by their key, as behind the real gate: first the caller's answer, then the recorded receipt or
refusal, whichever task sent it; otherwise the replay ends. Steps return their recorded results, because effects were
requested with them; steps without a record are called, and all of them if the caller wants to debug them. Dataset rows
are checked and counted, as a worker would, and discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from holdfast.authoring.context import DatasetWriter
from holdfast.codec import json_codec
from holdfast.core.datasets.dataset import Dataset, Mode
from holdfast.core.tasks.replay import Receipt
from holdfast.engine.effects.gate import GateDecision, OpenEffect
from holdfast.engine.effects.steps import KeepStep, RecallSteps, Steps, StoredStep
from holdfast.errors import Conflict
from holdfast.execution.dataset_writer import (
    AsyncWriter,
    AttemptDatasets,
    BlockingWriter,
    Datasets,
    DeclaredDatasets,
    here,
)
from holdfast.execution.effect_store import Answer, LeaseRenewed, Renew, Request, StepKept


class EffectNotRecorded(Conflict):
    """A replay reached an effect for which neither the record nor the caller has an answer."""

    default_code = "effect_in_replay"


FindReceipts = Callable[[str, str], Coroutine[Any, Any, Sequence[Receipt]]]
"""Finds the answers to an effect under a user's key, whichever task sent it."""


class ReplayRecord:
    """The effect store of a replay. `requested` are the names of the requested effects, in order."""

    def __init__(
        self,
        receipts: Sequence[Receipt],
        answers: Mapping[str, Any],
        *,
        task_id: str,
        find_receipts: FindReceipts | None,
        steps: Sequence[StoredStep] | None,
        bytes_max: int,
    ) -> None:
        """Create the store; with `steps` None, all steps are called."""
        self._steps = steps
        self._receipts = list(receipts)
        self._task_id = task_id
        self._find_receipts = find_receipts
        self._answers = answers
        self._bytes_max = bytes_max
        self.requested: list[str] = []

    async def ask(self, request: Request) -> Answer:
        """Answer without waiting: plain code runs this without an event loop."""
        match request:
            case OpenEffect():
                return await self._gate(request)
            case RecallSteps():
                return Steps(list(self._steps or ()))
            case KeepStep():
                return StepKept()
            case Renew():
                return LeaseRenewed(False)
            case _:
                raise AssertionError("a replay's gate is never open, so nothing is ever answered")

    async def _gate(self, wanted: OpenEffect) -> GateDecision:
        self.requested.append(wanted.name)
        keyed = f"{wanted.name}:{wanted.user_key}"
        for name in (keyed, wanted.name):
            if name in self._answers:
                receipt = json_codec.encode(self._answers[name], bytes_max=self._bytes_max, what=f"receipt of {name}")
                return GateDecision(key="", receipt=receipt)
        known = self._known(wanted)
        if known is None and wanted.user_key is not None and self._find_receipts is not None:
            self._receipts += await self._find_receipts(wanted.name, wanted.user_key)
            known = self._known(wanted)
        if known is None:
            named = wanted.name if wanted.user_key is None else keyed
            raise EffectNotRecorded(
                f"The replay stopped at the effect {named!r}: it has no receipt on record, and replays send nothing.",
                advice=f"Give its receipt: --effect {named}=JSON, or effects={{{named!r}: …}}.",
            )
        if known.state == "done":
            return GateDecision(key="", receipt=known.receipt or b"null")
        return GateDecision(key="", code=known.code, message=known.message)

    def _known(self, wanted: OpenEffect) -> Receipt | None:
        """Return the recorded answer. From a task that this one replaced, only one with the same arguments counts."""
        position = _position(wanted.name, wanted.user_key, wanted.ordinal)
        matching = [
            receipt
            for receipt in self._receipts
            if _position(receipt.effect, receipt.user_key, receipt.ordinal) == position
        ]
        if same := next((receipt for receipt in matching if receipt.digest == wanted.digest), None):
            return same
        if any(receipt.user_key is not None or receipt.task_id == self._task_id for receipt in matching):
            raise self._other_arguments(wanted.name)
        return None

    def _other_arguments(self, name: str) -> Conflict:
        why = "what changes by itself must come from ctx.step" if self._steps is not None else "steps ran again"
        return Conflict(
            f"{name} was asked for with other arguments when it ran.",
            code="effect_key_reused",
            advice=f"Code or values changed since: {why}. Or give its receipt: --effect {name}=JSON, or effects=.",
        )


def _position(effect: str, user_key: str | None, ordinal: int) -> tuple[str, str | None, int]:
    return effect, user_key, ordinal if user_key is None else 0


class DiscardedRows(AttemptDatasets):
    """Dataset rows of a replay: opened, checked and counted, never staged."""

    def __init__(self, datasets: Datasets, answers: Mapping[str, Any]) -> None:
        self.declared = _Named(datasets)
        self.commits = []
        self._answers = answers

    async def open(self, dataset: Dataset, mode: Mode, partition: str) -> Any:
        return _Rows()

    async def stage(self, part: Any, records: list[tuple[Any, ...]]) -> None:
        part.rows += len(records)

    def close(self, part: Any) -> int:
        return int(part.rows)

    async def cut_over(self, dataset: Dataset, *, force: bool) -> None:
        """Do nothing: readers keep their version."""

    async def count(self, dataset: Dataset, partition: str | None) -> int:
        name = f"{dataset.name}.count"
        if name not in self._answers:
            raise EffectNotRecorded(
                f"The replay stopped at the count of {dataset.name}: replays read no tables.",
                advice=f"Say how many: --effect {name}=NUMBER, or effects={{{name!r}: …}}.",
            )
        return int(self._answers[name])

    def writer(self, *, is_async: bool) -> Callable[[str, int | None], DatasetWriter]:
        """Return the function behind `ctx.dataset`."""

        def find(name: str, version: int | None) -> DatasetWriter:
            dataset = self.declared.find(name, version)
            return AsyncWriter(self, dataset, here) if is_async else BlockingWriter(self, dataset, _at_once)

        return find


class _Named(DeclaredDatasets):
    """The datasets that an app declares, without a database."""

    def __init__(self, datasets: Datasets) -> None:
        self._datasets = datasets


class _Rows:
    def __init__(self) -> None:
        self.rows = 0


def _at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("nothing of a replay waits")
