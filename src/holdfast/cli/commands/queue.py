"""`holdfast queue …`: the counts of queues, and their pauses and limits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.ui.command_tree import Group
from holdfast.cli.ui.completions import queue_names
from holdfast.cli.ui.output import Column, emit_json, emit_pairs, emit_rows
from holdfast.cli.ui.quota_options import ALL_QUEUES, emit_quotas, said
from holdfast.cli.ui.shell import Shell, all_of, the_shell
from holdfast.cli.ui.words import compact, hue
from holdfast.core.values.duration import human
from holdfast.errors import Invalid, WaitTimeout

if TYPE_CHECKING:
    from holdfast.engine.limits.queues import QueueView

LOOK_SECONDS = 0.5


@click.group(cls=Group)
def queue() -> None:
    """List, pause, drain and limit queues."""


@queue.command("list")
def list_() -> None:
    """List queues with their counts.

    queued (including tasks not yet due), running, retrying and blocked are current counts; completed, failed and
    canceled count kept history. completed is exact; the others are counted up to bounds far above usual sizes. A plus
    (in JSON: `partial` names the count) means that there may be more.
    """
    from holdfast.operations.queues import ListQueues, list_queues

    shell = the_shell()
    rows = shell.ask_all(list_queues, ListQueues(), lambda page: page.queues)
    emit_rows(shell, rows, columns(), empty="No queues yet: one appears with its first worker or task.")


def columns() -> list[Column[QueueView]]:
    """Return the columns of the table of queues, also used by `top`."""

    def count(title: str, name: str, *, optional: bool = False) -> Column[QueueView]:
        def text(row: QueueView) -> str:
            return compact(getattr(row, name), is_partial=name in row.partial)

        def colour(row: QueueView) -> str:
            return hue(name) if getattr(row, name) else ""

        return Column(
            title=title, text=text, plain=lambda row: getattr(row, name), hue=colour, right=True, optional=optional
        )

    return [
        Column(title="QUEUE", text=lambda row: row.name),
        count("QUEUED", "queued"),
        count("RUNNING", "running"),
        count("RETRYING", "retrying"),
        count("COMPLETED", "completed", optional=True),
        count("FAILED", "failed"),
        count("BLOCKED", "blocked", optional=True),
        Column(
            title="OLDEST",
            text=lambda row: "–" if row.oldest_seconds is None else human(row.oldest_seconds),
            plain=lambda row: row.oldest_seconds,
            right=True,
            optional=True,
        ),
        Column(title="WORKERS", text=lambda row: str(row.workers), right=True, optional=True),
        Column(title="LIMIT", text=_limits, shrinks=True, optional=True),
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
def show(name: str) -> None:
    """Show one queue: its counts, its limits, and who paused it and why."""
    from holdfast.operations.queues import OfQueue, show_queue

    shell = the_shell()
    view = shell.ask(show_queue, OfQueue(name=name))
    if shell.is_json:
        emit_json(view)
        return
    counts = ("queued", "delayed", "running", "retrying", "blocked", "completed", "failed", "canceled")
    pairs: list[tuple[str, object]] = [("queue", view.name)]
    pairs += [(count, compact(getattr(view, count) or 0, is_partial=count in view.partial)) for count in counts]
    pairs += [
        ("oldest", "–" if view.oldest_seconds is None else human(view.oldest_seconds)),
        ("workers", view.workers),
        ("limits", _limits(view)),
        ("paused", _pause(view)),
    ]
    emit_pairs(shell, pairs)


@queue.command()
@click.argument("name", shell_complete=queue_names)
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def pause(name: str, reason: str) -> None:
    """Stop a queue from handing out tasks; running tasks continue."""
    from holdfast.operations.queues import pause_queue
    from holdfast.operations.shared_types import NameAndReason

    shell = the_shell()
    done = shell.ask(pause_queue, NameAndReason(name=name, reason=reason))
    _tell(shell, name, "paused" if done.is_changed else "already paused", paused=True)


@queue.command()
@click.argument("name", shell_complete=queue_names)
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def resume(name: str, reason: str) -> None:
    """Allow a queue to hand out tasks again."""
    from holdfast.operations.queues import resume_queue
    from holdfast.operations.shared_types import NameAndReason

    shell = the_shell()
    done = shell.ask(resume_queue, NameAndReason(name=name, reason=reason))
    _tell(shell, name, "resumed" if done.is_changed else "was not paused", paused=False)


@queue.command()
@click.argument("name", shell_complete=queue_names)
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
@click.option("--timeout", metavar="DURATION", help="Give up waiting after this long; exit code 6.")
def drain(name: str, reason: str, timeout: str | None) -> None:
    """Pause a queue and wait until none of its tasks runs. Queued tasks wait for `queue resume`.

    After a timeout or an interrupt the queue stays paused. A worker that was already launched for a task may still
    start.
    """
    shell = the_shell()
    shell.run(_drain(shell, name, reason, timeout))
    _tell(shell, name, "drained", paused=True)


async def _drain(shell: Shell, name: str, reason: str, timeout: str | None) -> None:
    from holdfast.operations.follow import TimeLimit
    from holdfast.operations.queues import ListQueues, list_queues, pause_queue
    from holdfast.operations.shared_types import NameAndReason

    time_limit = TimeLimit(timeout)
    async with shell.operation_client() as operation_client:
        await operation_client.ask(pause_queue, NameAndReason(name=name, reason=reason))
        reported = 0
        while True:
            rows = await all_of(operation_client, list_queues, ListQueues(history=False), lambda page: page.queues)
            view = next(row for row in rows if row.name == name)
            if view.running == 0 and "running" not in view.partial:
                return
            if view.running != reported:
                shell.talk(f"Paused; {compact(view.running, is_partial='running' in view.partial)} still run.")
                reported = view.running
            if time_limit.is_over:
                raise WaitTimeout(
                    f"{view.running} of queue {name} still run after {time_limit.seconds:g} s; the queue stays paused.",
                    advice="See `holdfast worker list`, or resume the queue: `holdfast queue resume`.",
                )
            await asyncio.sleep(LOOK_SECONDS)


@queue.command()
@click.argument("name", shell_complete=queue_names)
@click.option("--running", metavar="N|none", help="At most N tasks of the queue run at once.")
@click.option("--per-second", metavar="X|none", help="At most X tasks of the queue start per second.")
@click.option("--retries", metavar="N/TIME|none", help="At most N retries per time, for example 100/1m.")
@click.option("--retry-share", metavar="X%|none", help="Retry at most this share of the first attempts.")
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def limit(
    name: str,
    running: str | None,
    per_second: str | None,
    retries: str | None,
    retry_share: str | None,
    reason: str,
) -> None:
    """Limit a queue, or remove a limit with `none`. Limits that are not named are unchanged.

    NAME `*` limits the retries of all queues together; without a limit it shows every quota on retries, including those
    of actions and queues. Retries over a quota wait and use no budget.
    """
    from holdfast.operations.queues import LimitQueue, LimitRetries, limit_queue, limit_retries, show_quotas
    from holdfast.operations.shared_types import Empty

    shell = the_shell()
    if running is None and per_second is None and retries is None and retry_share is None:
        if name == ALL_QUEUES:
            emit_quotas(shell, shell.ask(show_quotas, Empty()).quotas)
            return
        raise Invalid(
            "No limit was named.",
            code="invalid_limit",
            advice="Give --running, --per-second, --retries or --retry-share. List the current limits: "
            "holdfast queue list.",
        )

    limits = {"running": _number(running, int, "--running"), "per_second": _number(per_second, float, "--per-second")}
    quotas = {"retries": said(retries), "retry_share": said(retry_share)}
    if name == ALL_QUEUES:
        if running is not None or per_second is not None:
            raise Invalid("All queues together can only have a retry quota.", code="invalid_limit")
        emit_quotas(shell, shell.ask(limit_retries, LimitRetries(reason=reason, **quotas)).quotas)
        return
    view = shell.ask(limit_queue, LimitQueue(name=name, reason=reason, **limits, **quotas))
    if shell.is_json:
        emit_json(view)
        return
    click.echo(f"{name}\t{_limits(view)}")


def _number(text: str | None, kind: type, option: str) -> Any:
    if text is None or text == "none":
        return said(text)
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
