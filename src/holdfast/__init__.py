"""Holdfast: durable tasks and flows for Python on PostgreSQL.

    import holdfast as hf

    app = hf.App("shop")

    @app.action(queue="mail", max_retries=3, timeout="2m")
    async def send_receipt(ctx: hf.Context, order_id: int) -> dict: ...

Names are imported on first use, so that the command line starts quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.authoring.action import Action
    from holdfast.authoring.app import App
    from holdfast.authoring.context import Context
    from holdfast.authoring.executor import Executor
    from holdfast.authoring.flow.flow import Flow
    from holdfast.authoring.flow.waits import approval, wait_for
    from holdfast.authoring.packs.load import load_pack
    from holdfast.client.client import Client, Task
    from holdfast.client.runs import Run
    from holdfast.client.sync_client import SyncClient
    from holdfast.codec.clock import Clock
    from holdfast.codec.reporters import Reported, Reporter
    from holdfast.core.datasets.dataset import Dataset
    from holdfast.core.explain.task import Explanation
    from holdfast.core.limits.breaker import Breaker
    from holdfast.core.limits.quota import Quota
    from holdfast.core.tasks.classify import Rule
    from holdfast.core.tasks.path import replace_attempt_segment
    from holdfast.core.tasks.retry import RetryPolicy
    from holdfast.core.tasks.signals import Fatal, Retry
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
    from holdfast.execution.executor_calls import Attempt
    from holdfast.execution.fence import assert_lease
    from holdfast.settings.settings import Settings
    from holdfast.worker.runtime.processor import Processed

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
    "Action": "holdfast.authoring.action",
    "App": "holdfast.authoring.app",
    "Attempt": "holdfast.execution.executor_calls",
    "Breaker": "holdfast.core.limits.breaker",
    "Client": "holdfast.client.client",
    "Clock": "holdfast.codec.clock",
    "Conflict": "holdfast.errors",
    "Context": "holdfast.authoring.context",
    "Dataset": "holdfast.core.datasets.dataset",
    "EffectDenied": "holdfast.errors",
    "EffectRefused": "holdfast.errors",
    "Executor": "holdfast.authoring.executor",
    "Explanation": "holdfast.core.explain.task",
    "Fatal": "holdfast.core.tasks.signals",
    "Flow": "holdfast.authoring.flow.flow",
    "HoldfastError": "holdfast.errors",
    "Invalid": "holdfast.errors",
    "LeaseLost": "holdfast.errors",
    "NotFound": "holdfast.errors",
    "Quota": "holdfast.core.limits.quota",
    "Processed": "holdfast.worker.runtime.processor",
    "Reported": "holdfast.codec.reporters",
    "Reporter": "holdfast.codec.reporters",
    "Retry": "holdfast.core.tasks.signals",
    "RetryPolicy": "holdfast.core.tasks.retry",
    "Rule": "holdfast.core.tasks.classify",
    "Run": "holdfast.client.runs",
    "Settings": "holdfast.settings.settings",
    "SyncClient": "holdfast.client.sync_client",
    "Task": "holdfast.client.client",
    "TaskFailed": "holdfast.errors",
    "Unavailable": "holdfast.errors",
    "WaitTimeout": "holdfast.errors",
    "load_pack": "holdfast.authoring.packs.load",
    "approval": "holdfast.authoring.flow.waits",
    "assert_lease": "holdfast.execution.fence",
    "replace_attempt_segment": "holdfast.core.tasks.path",
    "wait_for": "holdfast.authoring.flow.waits",
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
