"""Shell completion: names of queues, actions and flows, ids of tasks and runs, within a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from holdfast.operations.client import OperationClient

COMPLETE_SECONDS_MAX = 2.0


def queue_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete names of queues."""
    return _ask(ctx, _queues, incomplete)


def action_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete names of declared actions."""
    return _ask(ctx, _actions, incomplete)


def flow_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete names of flows."""
    return _ask(ctx, _flows, incomplete)


def schedule_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete names of schedules."""
    return _ask(ctx, _schedules, incomplete)


def webhook_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete names of webhooks."""
    return _ask(ctx, _webhooks, incomplete)


async def _webhooks(operation_client: OperationClient) -> list[str]:
    from holdfast.operations.shared_types import ListNames
    from holdfast.operations.webhooks import list_webhooks

    return [view.name for view in (await operation_client.ask(list_webhooks, ListNames())).webhooks]


def task_ids(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete ids of the newest tasks."""
    return _ask(ctx, _tasks, incomplete)


def run_ids(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete ids of the newest runs."""
    return _ask(ctx, _runs, incomplete)


def fingerprints(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete fingerprints of dead letter groups."""
    return _ask(ctx, _fingerprints, incomplete)


async def _queues(operation_client: OperationClient) -> list[str]:
    from holdfast.operations.queues import name_queues
    from holdfast.operations.shared_types import Empty

    return (await operation_client.ask(name_queues, Empty())).names


async def _actions(operation_client: OperationClient) -> list[str]:
    from holdfast.operations.shared_types import ListNames
    from holdfast.operations.workers import list_actions

    return [action.name for action in (await operation_client.ask(list_actions, ListNames())).actions]


async def _flows(operation_client: OperationClient) -> list[str]:
    from holdfast.operations.flows import list_flows
    from holdfast.operations.shared_types import ListNames

    return list(dict.fromkeys(flow.name for flow in (await operation_client.ask(list_flows, ListNames())).flows))


async def _schedules(operation_client: OperationClient) -> list[str]:
    from holdfast.operations.paging import NAMES_PAGE
    from holdfast.operations.schedules import ListSchedules, list_schedules

    return [
        schedule.name
        for schedule in (await operation_client.ask(list_schedules, ListSchedules(limit=NAMES_PAGE))).schedules
    ]


async def _tasks(operation_client: OperationClient) -> list[str]:
    from holdfast.operations.tasks import ListTasks, list_tasks

    return [row.task_id for row in (await operation_client.ask(list_tasks, ListTasks())).tasks]


async def _runs(operation_client: OperationClient) -> list[str]:
    from holdfast.operations.runs import ListRuns, list_runs

    return [row.run_id for row in (await operation_client.ask(list_runs, ListRuns())).runs]


async def _fingerprints(operation_client: OperationClient) -> list[str]:
    from holdfast.operations.dead_letters import ListGroups, list_groups

    return [group.fingerprint for group in (await operation_client.ask(list_groups, ListGroups())).groups]


def _ask(
    ctx: click.Context, read: Callable[[OperationClient], Coroutine[Any, Any, list[str]]], incomplete: str
) -> list[str]:
    """Return completions, or none after any error: completion is optional and must not print."""
    from holdfast.cli.ui.shell import Shell

    async def names() -> list[str]:
        async with ctx.find_root().ensure_object(Shell).operation_client() as operation_client:
            return await read(operation_client)

    async def in_time() -> list[str]:
        return await asyncio.wait_for(names(), COMPLETE_SECONDS_MAX)

    try:
        found = asyncio.run(in_time())
    except Exception:  # noqa: BLE001 - an error in completion must not write to the user's prompt
        return []
    return [name for name in found if name.startswith(incomplete)]
