"""Holdfast: durable tasks and flows for Python on PostgreSQL.

import holdfast as hf

app = hf.App("shop")

@app.action(queue="mail", max_retries=3, timeout="2m")
async def send_receipt(ctx: hf.Context, order_id: int) -> dict: ...

Names are imported when first used, so that the command line answers at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.action import Action
    from holdfast.app import App
    from holdfast.client.blocking import SyncClient
    from holdfast.client.client import Client, Task
    from holdfast.client.runs import Run
    from holdfast.clock import Clock
    from holdfast.core.circuit import Breaker
    from holdfast.core.classify import Rule
    from holdfast.core.dataset import Dataset
    from holdfast.core.explain import Explanation
    from holdfast.core.path import replace_attempt_segment
    from holdfast.core.quota import Quota
    from holdfast.core.retry import RetryPolicy
    from holdfast.core.signals import Fatal, Retry
    from holdfast.errors import (
        Conflict,
        EffectDenied,
        EffectRefused,
        HoldfastError,
        Invalid,
        LeaseLost,
        NotFound,
        TaskFailed,
        Unavailable,
        WaitTimeout,
    )
    from holdfast.executor import Executor
    from holdfast.flow.flow import Flow
    from holdfast.flow.waits import approval, wait_for
    from holdfast.packs.load import load_pack
    from holdfast.reporters import Reported, Reporter
    from holdfast.settings import Settings
    from holdfast.worker.context import Context
    from holdfast.worker.executed import Attempt
    from holdfast.worker.fence import assert_lease
    from holdfast.worker.once import Processed

__all__ = [
    "Action",
    "App",
    "Attempt",
    "Breaker",
    "Client",
    "Clock",
    "Conflict",
    "Context",
    "Dataset",
    "EffectDenied",
    "EffectRefused",
    "Executor",
    "Explanation",
    "Fatal",
    "Flow",
    "HoldfastError",
    "Invalid",
    "LeaseLost",
    "NotFound",
    "Processed",
    "Quota",
    "Reported",
    "Reporter",
    "Retry",
    "RetryPolicy",
    "Rule",
    "Run",
    "Settings",
    "SyncClient",
    "Task",
    "TaskFailed",
    "Unavailable",
    "WaitTimeout",
    "approval",
    "assert_lease",
    "load_pack",
    "replace_attempt_segment",
    "wait_for",
]

__version__ = "0.1.0"

_HOMES = {
    "Action": "holdfast.action",
    "App": "holdfast.app",
    "Attempt": "holdfast.worker.executed",
    "Breaker": "holdfast.core.circuit",
    "Client": "holdfast.client.client",
    "Clock": "holdfast.clock",
    "Conflict": "holdfast.errors",
    "Context": "holdfast.worker.context",
    "Dataset": "holdfast.core.dataset",
    "EffectDenied": "holdfast.errors",
    "EffectRefused": "holdfast.errors",
    "Executor": "holdfast.executor",
    "Explanation": "holdfast.core.explain",
    "Fatal": "holdfast.core.signals",
    "Flow": "holdfast.flow.flow",
    "HoldfastError": "holdfast.errors",
    "Invalid": "holdfast.errors",
    "LeaseLost": "holdfast.errors",
    "NotFound": "holdfast.errors",
    "Quota": "holdfast.core.quota",
    "Processed": "holdfast.worker.once",
    "Reported": "holdfast.reporters",
    "Reporter": "holdfast.reporters",
    "Retry": "holdfast.core.signals",
    "RetryPolicy": "holdfast.core.retry",
    "Rule": "holdfast.core.classify",
    "Run": "holdfast.client.runs",
    "Settings": "holdfast.settings",
    "SyncClient": "holdfast.client.blocking",
    "Task": "holdfast.client.client",
    "TaskFailed": "holdfast.errors",
    "Unavailable": "holdfast.errors",
    "WaitTimeout": "holdfast.errors",
    "load_pack": "holdfast.packs.load",
    "approval": "holdfast.flow.waits",
    "assert_lease": "holdfast.worker.fence",
    "replace_attempt_segment": "holdfast.core.path",
    "wait_for": "holdfast.flow.waits",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
