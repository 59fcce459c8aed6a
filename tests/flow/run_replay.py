"""How a run stands, from what was told about it and nothing else: the other way to read its nodes.

Events of overlapping transactions arrive in an order that can be resumed, which need not be the order in which one
task's things happened; `order` is. So each node keeps the order of the last thing that moved it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from holdfast.core.flows.run_state import RunState
from holdfast.core.tasks.states import RETRYING_LABEL, TaskState

STATES: Mapping[str, str] = MappingProxyType(
    {
        "task.queued": TaskState.QUEUED,
        "task.reserved": TaskState.QUEUED,
        "task.launch_failed": TaskState.QUEUED,
        "task.released": TaskState.QUEUED,
        "task.revived": TaskState.BLOCKED,
        "task.started": TaskState.RUNNING,
        "task.retrying": RETRYING_LABEL,
        "task.completed": TaskState.COMPLETED,
        "task.failed": TaskState.FAILED,
        "task.canceled": TaskState.CANCELED,
        "task.skipped": TaskState.SKIPPED,
        "task.upstream_failed": TaskState.UPSTREAM_FAILED,
    }
)
"""Where each event leaves its node. A retry without a pause is queued at once; a later start tells."""

RUN_STATES: Mapping[str, str] = MappingProxyType(
    {
        "execution.started": RunState.QUEUED,
        "execution.paused": RunState.PAUSED,
        "execution.resumed": RunState.RUNNING,
        "execution.canceling": RunState.RUNNING,
        "execution.redriven": RunState.QUEUED,
        "execution.completed": RunState.COMPLETED,
        "execution.failed": RunState.FAILED,
        "execution.canceled": RunState.CANCELED,
    }
)
"""Where each event leaves the run itself. That a node began or failed is told by the node."""


class Replay:
    """One run, folded from its events. Nodes are numbered as in the definition."""

    def __init__(self, nodes: int) -> None:
        self.states: list[str] = [TaskState.BLOCKED] * nodes
        self.attempts = [0] * nodes
        self.run_state: str = RunState.QUEUED
        self._orders = [-1] * nodes
        self._run_order = -1

    def of_node(self, kind: str, node_no: int, attempt: int, order: int) -> None:
        """Something happened to a node."""
        state = STATES.get(kind)
        if state is None or order <= self._orders[node_no]:
            return
        self._orders[node_no] = order
        self.states[node_no] = state
        self.attempts[node_no] = max(attempt, self.attempts[node_no])

    def of_run(self, kind: str, order: int) -> None:
        """Something happened to the run. A cancel ends what is blocked, and that alone tells no node of its own."""
        if kind in ("execution.canceling", "execution.canceled"):
            for number, state in enumerate(self.states):
                if state == TaskState.BLOCKED and order > self._orders[number]:
                    self._orders[number] = order
                    self.states[number] = TaskState.CANCELED
        if kind in RUN_STATES and order > self._run_order:
            self._run_order = order
            self.run_state = RUN_STATES[kind]
