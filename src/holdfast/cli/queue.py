"""`holdfast queue …`: how full queues are, and who holds them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.complete import queue_names
from holdfast.cli.retries import ALL_QUEUES, emit_quotas, limit_all_retries, limit_retries
from holdfast.cli.shell import Shell, actor, the_shell
from holdfast.cli.show import Column, emit_json, emit_rows
from holdfast.cli.tree import Group
from holdfast.cli.words import compact, hue
from holdfast.core.duration import human
from holdfast.errors import Invalid

if TYPE_CHECKING:
    from holdfast.dispatcher.queues import QueueView


@click.group(cls=Group)
def queue() -> None:
    """See, pause and limit queues."""


@queue.command("list")
def list_() -> None:
    """List queues with their counts.

    queued (with those not yet due), running and retrying are what there is now. blocked looks at the newest open runs;
    completed, failed and canceled at the newest part of kept history. A plus (in JSON: `partial` names the count) says
    that there may be more.
    """
    shell = the_shell()
    emit_rows(
        shell, shell.run(_list(shell)), columns(), empty="No queues yet: one appears with its first worker or task."
    )


async def _list(shell: Shell) -> list[QueueView]:
    from holdfast.dispatcher.queues import list_queues
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    async with shell.client() as client:
        return await list_queues(client.engine.database, DEFAULT_TENANT_ID)


def columns() -> list[Column[QueueView]]:
    """The table of queues, also that of `top`."""

    def count(title: str, name: str) -> Column[QueueView]:
        def text(row: QueueView) -> str:
            return compact(getattr(row, name), is_partial=name in row.partial)

        def colour(row: QueueView) -> str:
            return hue(name) if getattr(row, name) else ""

        return Column(title=title, text=text, plain=lambda row: getattr(row, name), hue=colour, right=True)

    return [
        Column(title="QUEUE", text=lambda row: row.name),
        count("QUEUED", "queued"),
        count("RUNNING", "running"),
        count("RETRYING", "retrying"),
        count("COMPLETED", "completed"),
        count("FAILED", "failed"),
        count("BLOCKED", "blocked"),
        Column(
            title="OLDEST",
            text=lambda row: "–" if row.oldest_seconds is None else human(row.oldest_seconds),
            plain=lambda row: row.oldest_seconds,
            right=True,
        ),
        Column(title="WORKERS", text=lambda row: str(row.workers), right=True),
        Column(title="LIMIT", text=_limits),
        Column(title="PAUSED", text=_pause, hue=lambda row: hue("paused") if row.paused else "", stretch=True),
    ]


def _limits(row: QueueView) -> str:
    running = "" if row.max_running is None else f"{row.max_running} running"
    starts = "" if row.starts_per_second is None else f"{row.starts_per_second:g}/s"
    retries = "" if row.retry_quota is None else f"retries {row.retry_quota}"
    return ", ".join(part for part in (running, starts, retries) if part) or "–"


def _pause(row: QueueView) -> str:
    return f"by {row.paused_by}: {row.paused_reason or 'no reason given'}" if row.paused else "–"


@queue.command()
@click.argument("name", shell_complete=queue_names)
@click.option("--reason", metavar="TEXT", default="", help="Why, for whoever wonders.")
def pause(name: str, reason: str) -> None:
    """Stop a queue from handing out work; what runs goes on."""
    from holdfast.dispatcher import queues

    shell = the_shell()
    is_changed = shell.run(_steer(shell, queues.pause, name, reason))
    _tell(shell, name, "paused" if is_changed else "paused already", paused=True)


@queue.command()
@click.argument("name", shell_complete=queue_names)
@click.option("--reason", metavar="TEXT", default="", help="Why, for whoever wonders.")
def resume(name: str, reason: str) -> None:
    """Let a queue hand out work again."""
    from holdfast.dispatcher import queues

    shell = the_shell()
    is_changed = shell.run(_steer(shell, queues.resume, name, reason))
    _tell(shell, name, "resumed" if is_changed else "was not paused", paused=False)


@queue.command()
@click.argument("name", shell_complete=queue_names)
@click.option("--running", metavar="N|none", help="At most N tasks of the queue run at once.")
@click.option("--per-second", metavar="X|none", help="At most X tasks of the queue start per second.")
@click.option("--retries", metavar="N/TIME|none", help="At most N retries per time, for example 100/1m.")
@click.option("--retry-share", metavar="X%|none", help="At most that share of the first attempts is retried.")
@click.option("--reason", metavar="TEXT", default="", help="Why, for whoever wonders.")
def limit(
    name: str,
    running: str | None,
    per_second: str | None,
    retries: str | None,
    retry_share: str | None,
    reason: str,
) -> None:
    """Limit a queue, or lift a limit with `none`. What is not named stays.

    NAME `*` limits the retries of all queues together. Retries that find no room wait and spend nothing.
    """
    shell = the_shell()
    if running is None and per_second is None and retries is None and retry_share is None:
        raise Invalid(
            "No limit was named.",
            code="invalid_limit",
            advice="Give --running, --per-second, --retries or --retry-share.",
        )
    asked = (_number(running, int, "--running"), _number(per_second, float, "--per-second"))
    if name == ALL_QUEUES:
        if running is not None or per_second is not None:
            raise Invalid("All queues together can only have a retry quota.", code="invalid_limit")
        views = shell.run(limit_all_retries(shell, retries, retry_share, reason))
        emit_quotas(shell, views)
        return
    view = shell.run(_limit(shell, name, (running, per_second, retries, retry_share), asked, reason))
    if shell.is_json:
        emit_json(view)
        return
    click.echo(f"{name}\t{_limits(view)}")


async def _steer(shell: Shell, verb: Any, name: str, reason: str) -> bool:
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    async with shell.client() as client:
        return bool(await verb(client.engine, DEFAULT_TENANT_ID, name, actor=actor(), reason=reason))


async def _limit(
    shell: Shell, name: str, given: tuple[str | None, ...], asked: tuple[Any, Any], reason: str
) -> QueueView:
    from holdfast.dispatcher import queues
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    async with shell.client() as client:
        engine = client.engine
        await queues.require_queue(engine.database, DEFAULT_TENANT_ID, name)
        if given[2] is not None or given[3] is not None:
            await limit_retries(engine, name, given[2], given[3], reason)
        if given[0] is not None or given[1] is not None:
            (now,) = await queues.list_queues(engine.database, DEFAULT_TENANT_ID, name=name, with_history=False)
            await queues.limit(
                engine,
                DEFAULT_TENANT_ID,
                name,
                max_running=now.max_running if given[0] is None else asked[0],
                starts_per_second=now.starts_per_second if given[1] is None else asked[1],
                actor=actor(),
                reason=reason,
            )
        (now,) = await queues.list_queues(engine.database, DEFAULT_TENANT_ID, name=name, with_history=False)
        return now


def _number(text: str | None, kind: type, option: str) -> Any:
    if text is None or text == "none":
        return None
    try:
        return kind(text)
    except ValueError:
        noun = "a whole number" if kind is int else "a number"
        raise Invalid(f"{option} must be {noun} or none, not {text!r}.", code="invalid_limit") from None


def _tell(shell: Shell, name: str, word: str, *, paused: bool) -> None:
    if shell.is_json:
        emit_json({"name": name, "paused": paused})
        return
    click.echo(f"{name}\t{word}")
