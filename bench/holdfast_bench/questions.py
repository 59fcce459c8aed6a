"""Every list of the operator API with every filter: the requests of the page measurement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_origin, get_type_hints

from holdfast.operations.operation import Operation
from holdfast.operations.registry import OPERATIONS
from holdfast_bench.history import QUEUES, RARE_TAG, TAG, History

PAGING = frozenset({"before", "after", "limit", "ended_by", "wait_seconds"})
"""Fields that select a page, not rows."""
NOT_LISTS = frozenset({"checkup"})
"""It returns a list of findings, and reads no list."""

Asked = Mapping[str, Any]


def list_operations() -> tuple[Operation[Any, Any], ...]:
    """Return the operations that return a page, or nothing but lists."""
    return tuple(
        operation
        for operation in OPERATIONS
        if operation.method == "GET" and operation.name not in NOT_LISTS and _is_list(operation.answer)
    )


def _is_list(answer: type[Any]) -> bool:
    hints = get_type_hints(answer)
    lists = [name for name, kind in hints.items() if get_origin(kind) is list]
    return bool(lists) and ("next" in hints or len(lists) == len(hints))


def questions(history: History) -> Mapping[str, tuple[Asked, ...]]:
    """Return the requests for each list: everything, each filter with many and with few matches, and a late page."""
    some: dict[str, tuple[Asked, ...]] = {
        "task.list": _of_tasks(history),
        "run.list": _of_runs(history),
        "dead.list": _of_letters(history),
        "dead.export": ({}, {"everything": True}, {"fingerprint": "fault7"}),
        "effect.list": _of_effects(history),
        "audit.list": _of_changes(history),
        "queue.list": ({}, {"history": False}),
        "token.list": ({}, {"with_ended": True}),
        "task.logs": ({"task_id": str(history.task_id)}, {"task_id": str(history.task_id), "attempt": 1}),
        "run.events": ({"run_id": str(history.run_id)},),
    }
    plain: tuple[Asked, ...] = ({},)
    return {operation.name: some.get(operation.name, plain) for operation in list_operations()}


def _of_tasks(history: History) -> tuple[Asked, ...]:
    middle = history.task_id + history.tasks // 2
    last_run = history.run_id + history.tasks // 20
    return (
        {},
        *({"state": [state]} for state in ("queued", "running", "retrying", "completed", "failed", "canceled")),
        *({"state": [state]} for state in ("blocked", "skipped", "upstream_failed")),
        {"queue": "queue7"},
        {"queue": f"queue{QUEUES + 1}"},
        {"action": "shop.queue7_1"},
        {"queue": "queue7", "state": ["completed"]},
        {"queue": f"queue{QUEUES + 1}", "state": ["completed", "failed"]},
        {"queue": f"queue{QUEUES + 1}", "state": ["queued", "retrying"]},
        {"tag": TAG},
        {"tag": RARE_TAG},
        {"tag": RARE_TAG, "state": ["completed"]},
        {"before": str(middle)},
        {"before": str(middle), "queue": f"queue{QUEUES + 1}"},
        {"before": str(last_run)},
        {"since": "1h"},
        {"since": "1h", "state": ["failed"]},
        {"limit": 500},
    )


def _of_runs(history: History) -> tuple[Asked, ...]:
    middle = history.run_id + history.tasks // 20
    return (
        {},
        *({"state": [state]} for state in ("queued", "running", "paused", "blocked")),
        *({"state": [state]} for state in ("completed", "failed", "canceled")),
        {"flow": f"bench.chain{history.nodes}"},
        {"flow": "bench.idle"},
        {"tag": TAG},
        {"tag": RARE_TAG},
        {"since": "1h"},
        {"before": str(middle)},
    )


def _of_letters(history: History) -> tuple[Asked, ...]:
    return (
        {},
        {"everything": True},
        {"everything": True, "before": str(history.tasks // 50)},
        {"before": str(history.tasks // 50)},
        *({"state": [state]} for state in ("open", "resolved", "ignored", "retrying", "retry_requested")),
        {"fingerprint": "fault7"},
        {"fingerprint": "fault7", "everything": True},
        {"fingerprint": "nothing", "everything": True},
        {"task_id": str(history.failed_id)},
        {"since": "1h"},
    )


def _of_effects(history: History) -> tuple[Asked, ...]:
    return (
        {},
        {"after": str(history.effect_id)},
        *({"state": state} for state in ("pending", "unknown", "done", "refused")),
        {"task_id": str(history.effect_id)},
    )


def _of_changes(history: History) -> tuple[Asked, ...]:
    return (
        {},
        {"before": history.tasks // 10},
        {"actor": "cli:7"},
        {"actor": "nobody"},
        {"verb": "tenant.limit"},
        {"verb": "nothing"},
        {"subject_kind": "task"},
        {"subject_kind": "queue"},
        {"subject_kind": "task", "subject_id": "7"},
        {"subject_id": "7"},
        {"since_seconds": 3600},
        {"since_seconds": 0.001},
    )


def all_questions(history: History) -> Iterator[tuple[Operation[Any, Any], Asked]]:
    """Yield each request with its operation."""
    asked = questions(history)
    for operation in list_operations():
        for one in asked[operation.name]:
            yield operation, one


def questions_beside(history: History) -> Iterator[tuple[Operation[Any, Any], Asked]]:
    """Yield the requests for a tenant that has none of this history: all without task ids, run ids or cursors."""
    for operation, asked in all_questions(history):
        if not operation.path_fields and not {"before", "after", "task_id"} & set(asked):
            yield operation, asked
