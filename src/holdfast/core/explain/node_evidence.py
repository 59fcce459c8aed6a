"""Evidence about one node or one run at one moment, for `explain_node` and `explain_run`.

Nodes with a task of their own are explained as tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from holdfast.core.explain.evidence import FailureFacts, RunPlace
from holdfast.core.flows.nodes import TriggerRule
from holdfast.core.flows.run_state import RunState
from holdfast.core.flows.wait import WaitFacts


class NodePosition(StrEnum):
    """The position of a node without a task of its own, finer than its state."""

    BLOCKED = "blocked"
    HELD = "held"
    ITEMS = "items"
    CHILD = "child"
    WAIT = "wait"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    SKIPPED = "skipped"
    UPSTREAM_FAILED = "upstream_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamFacts:
    """One upstream of a node, with the label of its state."""

    node: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseFacts:
    """The node whose end kept others from running, and how it failed."""

    node: str
    state: str
    task_id: str
    failure: FailureFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRestrictions:
    """How a run restricts its nodes: it is paused, limited, or was canceled."""

    paused_at: datetime | None = None
    paused_by: str = ""
    paused_reason: str = ""
    max_active: int | None = None
    active: int = 0
    canceled_at: datetime | None = None
    canceled_by: str = ""
    cancel_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsFacts:
    """The items of a node that maps over a list. `concurrency` None means all at once."""

    total: int
    pending: int
    failed: int
    canceled: int
    concurrency: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildFacts:
    """The run that a flow node started."""

    run_id: str
    flow: str
    state: RunState
    nodes: int
    pending: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvidence:
    """All evidence for the explanation of a node. `at` is the moment of reading."""

    task_id: str
    place: RunPlace
    position: NodePosition
    at: datetime
    rule: TriggerRule = TriggerRule.ALL_SUCCESS
    upstreams: tuple[UpstreamFacts, ...] = ()
    hold: RunRestrictions = RunRestrictions()
    cause: CauseFacts | None = None
    condition: str = ""
    condition_value: str = ""
    items: ItemsFacts | None = None
    child: ChildFacts | None = None
    wait: WaitFacts | None = None
    failure: FailureFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """All evidence for the explanation of a run.

    `names` has the first few nodes in each state, `counts` the number of nodes. `cause` is the first failure in the
    order of the flow. `front` says why a queued or retrying node has not started; `waits` are the first nodes that wait
    for a person or an external event.
    """

    run_id: str
    flow: str
    version: int
    state: RunState
    at: datetime
    created_at: datetime
    ended_at: datetime | None = None
    nodes: int = 0
    generation: int = 1
    counts: tuple[tuple[str, int], ...] = ()
    names: tuple[tuple[str, tuple[str, ...]], ...] = ()
    held: int = 0
    hold: RunRestrictions = RunRestrictions()
    cause: CauseFacts | None = None
    front: str = ""
    waits: tuple[tuple[str, WaitFacts], ...] = ()
    parent: str = ""
    original: str = ""

    def count(self, *states: str) -> int:
        return sum(count for state, count in self.counts if state in states)

    def named(self, state: str) -> tuple[str, ...]:
        return dict(self.names).get(state, ())
