"""The list of all operations. HTTP, the reference and the CLI tests read it."""

from __future__ import annotations

from typing import Any

from holdfast.operations import (
    access,
    administration,
    bulk,
    campaigns,
    datasets,
    dead_letters,
    effects,
    flows,
    queues,
    run_follow,
    runs,
    schedules,
    snapshots,
    tasks,
    waits,
    webhooks,
    workers,
)
from holdfast.operations.operation import Operation

OPERATIONS: tuple[Operation[Any, Any], ...] = (
    *tasks.OPERATIONS,
    *snapshots.OPERATIONS,
    *bulk.OPERATIONS,
    *runs.OPERATIONS,
    *run_follow.OPERATIONS,
    *waits.OPERATIONS,
    *flows.OPERATIONS,
    *queues.OPERATIONS,
    *workers.OPERATIONS,
    *schedules.OPERATIONS,
    *datasets.OPERATIONS,
    *dead_letters.OPERATIONS,
    *campaigns.OPERATIONS,
    *effects.OPERATIONS,
    *webhooks.OPERATIONS,
    *access.OPERATIONS,
    *administration.OPERATIONS,
)
