"""Holdfast: durable tasks for Python on PostgreSQL.

import holdfast as hf

app = hf.App("shop")

@app.action(queue="mail", max_retries=3, timeout="2m")
async def send_receipt(ctx: hf.Context, order_id: int) -> dict: ...
"""

from holdfast.action import Action
from holdfast.app import App
from holdfast.client.blocking import SyncClient
from holdfast.client.client import Client, Task
from holdfast.core.classify import Rule
from holdfast.core.path import replace_attempt_segment
from holdfast.core.retry import RetryPolicy
from holdfast.core.signals import Fatal, Retry
from holdfast.errors import (
    Conflict,
    HoldfastError,
    Invalid,
    LeaseLost,
    NotFound,
    TaskFailed,
    Unavailable,
    WaitTimeout,
)
from holdfast.settings import Settings
from holdfast.worker.context import Context

__all__ = [
    "Action",
    "App",
    "Client",
    "Conflict",
    "Context",
    "Fatal",
    "HoldfastError",
    "Invalid",
    "LeaseLost",
    "NotFound",
    "Retry",
    "RetryPolicy",
    "Rule",
    "Settings",
    "SyncClient",
    "Task",
    "TaskFailed",
    "Unavailable",
    "WaitTimeout",
    "replace_attempt_segment",
]

__version__ = "0.1.0"
