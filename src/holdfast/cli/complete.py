"""What the shell may complete: names of queues, actions and flows, ids of tasks and runs; asked in a moment at most."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import click

COMPLETE_SECONDS_MAX = 2.0


def queue_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of queues."""
    return _ask(ctx, _queues, incomplete)


def action_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of declared actions."""
    return _ask(ctx, _actions, incomplete)


def flow_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of flows."""
    return _ask(ctx, _flows, incomplete)


def schedule_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of schedules."""
    return _ask(ctx, _schedules, incomplete)


def webhook_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of webhooks."""
    return _ask(ctx, _webhooks, incomplete)


async def _webhooks(database: Any) -> list[str]:
    from holdfast.dispatcher.webhooks import list_webhooks
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    return [view.name for view in await list_webhooks(database, DEFAULT_TENANT_ID)]


def task_ids(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Ids of the newest tasks."""
    return _ask(ctx, _tasks, incomplete)


def run_ids(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Ids of the newest runs."""
    return _ask(ctx, _runs, incomplete)


async def _runs(database: Any) -> list[str]:
    from holdfast.store.catalog import DEFAULT_TENANT_ID
    from holdfast.store.statements import sql

    asked = (DEFAULT_TENANT_ID, None, None, None, 2**63 - 1, 50)
    return [row["run_id"] for row in await database.fetch(sql("list_runs"), *asked)]


def fingerprints(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Groups of dead letters."""
    return _ask(ctx, _fingerprints, incomplete)


async def _fingerprints(database: Any) -> list[str]:
    from holdfast.dispatcher.dead_look import dead_groups
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    return [group.fingerprint for group in await dead_groups(database, DEFAULT_TENANT_ID)]


async def _queues(database: Any) -> list[str]:
    from holdfast.dispatcher.queues import queue_names
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    return await queue_names(database, DEFAULT_TENANT_ID)


async def _actions(database: Any) -> list[str]:
    from holdfast.dispatcher.look import list_actions
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    return [action.name for action in await list_actions(database, DEFAULT_TENANT_ID)]


async def _flows(database: Any) -> list[str]:
    from holdfast.dispatcher.flows import list_flows
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    return list(dict.fromkeys(flow.name for flow in await list_flows(database, DEFAULT_TENANT_ID)))


async def _schedules(database: Any) -> list[str]:
    from holdfast.dispatcher.schedules import schedule_names
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    return await schedule_names(database, DEFAULT_TENANT_ID)


async def _tasks(database: Any) -> list[str]:
    from holdfast.dispatcher.look import list_tasks
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    return [row.task_id for row in await list_tasks(database, DEFAULT_TENANT_ID, limit=50)]


def _ask(ctx: click.Context, read: Callable[[Any], Coroutine[Any, Any, list[str]]], incomplete: str) -> list[str]:
    """Completion is a courtesy: whatever goes wrong, it offers nothing and says nothing."""
    from holdfast.cli.shell import Shell

    async def names() -> list[str]:
        async with ctx.find_root().ensure_object(Shell).client() as client:
            return await read(client.engine.database)

    async def in_time() -> list[str]:
        return await asyncio.wait_for(names(), COMPLETE_SECONDS_MAX)

    try:
        found = asyncio.run(in_time())
    except Exception:  # noqa: BLE001 - a broken completion must not litter somebody's prompt
        return []
    return [name for name in found if name.startswith(incomplete)]
