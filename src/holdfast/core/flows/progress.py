"""In-memory progress of a run while its lock is held: count ended nodes and find the nodes to release.

A node has a row only if something must be stored (`NodeRow`). A node with at most one upstream that was never reset has
none, because the end of that upstream alone decides. Ends that follow from other ends (skipped, upstream_failed) are
returned by `count` and counted in the next wave. The rule is in `release`; this module only does the bookkeeping.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.core.flows.nodes import TriggerRule
from holdfast.core.flows.plan import Plan
from holdfast.core.flows.release import COUNTERS, RELEASE_STATES, Release, UpstreamCounts, release
from holdfast.core.tasks.states import TaskState


class NodeRow:
    """The stored state of one node; `state` is the stored code."""

    __slots__ = ("attempt", "failed", "generation", "node_no", "pending", "skipped", "state", "succeeded")

    def __init__(
        self,
        node_no: int,
        state: str = "b",
        pending: int = 0,
        succeeded: int = 0,
        skipped: int = 0,
        failed: int = 0,
        attempt: int = 0,
        generation: int = 1,
    ) -> None:
        self.node_no = node_no
        self.state = state
        self.pending = pending
        self.succeeded = succeeded
        self.skipped = skipped
        self.failed = failed
        self.attempt = attempt
        self.generation = generation

    def counts(self) -> UpstreamCounts:
        return UpstreamCounts(pending=self.pending, succeeded=self.succeeded, skipped=self.skipped, failed=self.failed)


BLOCKED, HELD, RELEASED, SKIPPED, UPSTREAM_FAILED = "b", "h", "r", "k", "u"

_LETTERS = {Release.SKIP: SKIPPED, Release.UPSTREAM_FAILED: UPSTREAM_FAILED}

End = tuple[int, TaskState]
"""A node number and the state in which the node ended."""


class Progress:
    """The progress of one run while its lock is held.

    Collects the changes to write; all decisions come from `release`.
    """

    def __init__(self, plan: Plan, *, generation: int = 1) -> None:
        self.plan = plan
        self.generation = generation
        self.rows: dict[int, NodeRow] = {}
        self.changed: set[int] = set()
        self.ready: list[int] = []
        """Released nodes, in order of release."""
        self.ended = 0
        self.failed = 0

    def unknown(self, completed: Sequence[int], ends: Sequence[End]) -> list[int]:
        """Return the nodes whose row must be read before these ends can be counted."""
        rows, is_join = self.rows, self.plan.is_join
        may_be_reset = self.generation > 1
        downs = self.plan.downstream.tally((*completed, *(node_no for node_no, _ in ends)))
        return [down for down in downs if down not in rows and (may_be_reset or is_join[down])]

    def know(self, requested: Iterable[int], found: Mapping[int, NodeRow]) -> None:
        """Add the rows that were read; a node without a stored row gets a new one."""
        for node_no in requested:
            row = found.get(node_no)
            self.rows[node_no] = NodeRow(node_no, pending=self.plan.upstream.count(node_no)) if row is None else row

    def count(self, completed: Sequence[int], ends: Sequence[End]) -> list[End]:
        """Count completed and otherwise ended nodes; return the ends that follow at once.

        Nodes that may start are added to `ready`.
        """
        self.close(completed, ends)
        touched: dict[int, None] = {}
        follow: list[End] = []
        rows, rules, downstream = self.rows, self.plan.rules, self.plan.downstream
        for down, times in downstream.tally(completed).items():
            if (row := rows.get(down)) is not None:
                if row.state == BLOCKED:
                    row.pending -= times
                    row.succeeded += times
                    touched[down] = None
            elif rules[down] is TriggerRule.ALL_SUCCESS:
                self.ready.append(down)
            else:
                self._settle_single(down, TaskState.COMPLETED, follow)
        for node_no, state in ends:
            counter = COUNTERS[state].value
            for down in downstream[node_no]:
                if (row := rows.get(down)) is None:
                    self._settle_single(down, state, follow)
                elif row.state == BLOCKED:
                    row.pending -= 1
                    setattr(row, counter, getattr(row, counter) + 1)
                    touched[down] = None
        for down in touched:
            self._decide(self.rows[down], follow)
        return follow

    def close(self, completed: Sequence[int], ends: Sequence[End]) -> None:
        """Count ended nodes without following up, as needed in a canceled run."""
        self.ended += len(completed) + len(ends)
        self.failed += sum(state is TaskState.FAILED for _, state in ends)

    def skip(self, node_no: int) -> End:
        """Skip a releasable node because its condition is false."""
        self.mark(node_no, SKIPPED)
        return node_no, TaskState.SKIPPED

    def mark(self, node_no: int, state: str) -> NodeRow:
        """Record a node's state, in a new row if it has none."""
        row = self.rows.get(node_no)
        if row is None:
            row = self.rows[node_no] = NodeRow(node_no, generation=self.generation)
        row.state = state
        self.changed.add(node_no)
        return row

    def decide(self, node_no: int) -> list[End]:
        """Apply the decision that a known node's counters imply; return its end if it ends."""
        follow: list[End] = []
        self._decide(self.rows[node_no], follow)
        return follow

    def _settle_single(self, node_no: int, state: TaskState, follow: list[End]) -> None:
        """Decide on a node without a row whose only upstream ended."""
        decided = release(self.plan.rules[node_no], UpstreamCounts(pending=1).after(state))
        if decided is Release.RUN:
            self.ready.append(node_no)
        else:
            self.mark(node_no, _LETTERS[decided])
            follow.append((node_no, RELEASE_STATES[decided]))

    def _decide(self, row: NodeRow, follow: list[End]) -> None:
        self.changed.add(row.node_no)
        decided = release(self.plan.rules[row.node_no], row.counts())
        if decided is Release.WAIT:
            return
        if decided is Release.RUN:
            row.state = RELEASED
            self.ready.append(row.node_no)
        else:
            row.state = _LETTERS[decided]
            follow.append((row.node_no, RELEASE_STATES[decided]))
