"""`holdfast campaign …`: re-drive a group of dead letters as one operation that can be watched and stopped."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.ui.command_tree import Group
from holdfast.cli.ui.completions import fingerprints
from holdfast.cli.ui.output import Column, emit_json, emit_pairs, emit_rows, state_column
from holdfast.cli.ui.shell import FAILED, OK, Shell, the_shell
from holdfast.cli.ui.words import age, compact, hue, moment, state_text
from holdfast.core.dead_letters.campaign import AT_ONCE, CANARY
from holdfast.core.values.bounds import required_reason

if TYPE_CHECKING:
    from holdfast.engine.campaigns.commands import CampaignView
    from holdfast.engine.campaigns.plan import CampaignPlan, RepeatedEffect
    from holdfast.operations.client import OperationClient

BAR_CHARACTERS = 40
LOOK_SECONDS = 0.5


@click.group(cls=Group)
def campaign() -> None:
    """Re-drive a group of dead letters, a few first and more while they succeed."""


@campaign.command()
@click.option(
    "--group", "fingerprint", metavar="FP", required=True, help="Fingerprint of the group.", shell_complete=fingerprints
)
@click.option("--reason", metavar="TEXT", default="", help="Why the tasks will succeed now; required unless --dry-run.")
@click.option("--name", metavar="TEXT", default="", help="Name of the campaign.  [default: the group]")
@click.option(
    "--canary",
    type=int,
    default=CANARY,
    show_default=True,
    help="Size of the canary: release this many first, and wait for them.",
)
@click.option(
    "--at-once",
    type=int,
    default=AT_ONCE,
    show_default=True,
    help="Maximum number of released tasks that have not ended.",
)
@click.option("--approval", is_flag=True, help="Wait until another operator approves it.")
@click.option("--newer", is_flag=True, help="Wait for a worker newer than those that failed.")
@click.option("--dry-run", is_flag=True, help="Show what it would do, and change nothing.")
@click.option("--watch", is_flag=True, help="Follow it to its end; exit 1 if it stops.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def start(fingerprint: str, reason: str, dry_run: bool, watch: bool, yes: bool, **options: Any) -> None:
    """Start a campaign: a canary first, then more while it succeeds.

    It stops by itself when the same failure returns. Tasks wait in their own queue, behind other work and under its
    limits.
    """
    shell = the_shell()
    raise SystemExit(shell.run(_start(shell, fingerprint, reason, dry_run, watch, yes, options)))


async def _start(
    shell: Shell, fingerprint: str, reason: str, dry_run: bool, watch: bool, yes: bool, options: dict[str, Any]
) -> int:
    from holdfast.operations.campaigns import PlanCampaign, StartCampaign, plan_campaign, start_campaign
    from holdfast.operations.retrying_client import RetryingClient

    async with shell.operation_client() as operation_client:
        plan = await operation_client.ask(plan_campaign, PlanCampaign(fingerprint=fingerprint))
        if dry_run:
            tell_plan(shell, plan)
            return OK
        required_reason(reason)
        if not yes and not shell.is_json:
            _talk_plan(shell, plan)
        shell.confirm(f"Run {_tasks(plan)} of group {fingerprint} again?", yes=yes)
        view = await operation_client.ask(
            start_campaign, StartCampaign(fingerprint=fingerprint, reason=reason, **options)
        )
        if watch:
            return await _follow(
                shell, RetryingClient(operation_client, shell.talk, has_answered=True), view.campaign_id
            )
    _tell(shell, view)
    shell.talk(f"Follow it: holdfast campaign show {view.campaign_id} --watch")
    return OK


def tell_plan(shell: Shell, plan: CampaignPlan) -> None:
    """Print what re-driving a group would do."""
    if shell.is_json:
        emit_json(plan)
        return
    emit_pairs(shell, _plan_pairs(shell, plan))


def _talk_plan(shell: Shell, plan: CampaignPlan) -> None:
    for name, value in _plan_pairs(shell, plan):
        shell.talk(f"  {name}: {value}")


def _plan_pairs(shell: Shell, plan: CampaignPlan) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = [
        ("group", plan.fingerprint),
        ("tasks", f"{plan.tasks}{_more(plan)}"),
        *([("runs", f"{plan.runs}{_more(plan)}, each run again as a whole")] if plan.runs else []),
        ("failed", f"{moment(plan.first_seen, utc=shell.utc)} to {moment(plan.last_seen, utc=shell.utc)}"),
    ]
    for lane in plan.lanes:
        limits = [f"{lane.max_running} running"] if lane.max_running is not None else []
        limits += [f"{lane.starts_per_second:g}/s"] if lane.starts_per_second is not None else []
        limits += ["paused"] if lane.is_paused else []
        nodes = f", {lane.nodes} of them nodes of runs" if lane.nodes else ""
        pairs.append(
            (lane.action, f"{lane.tasks}{_more(plan)} on queue {lane.queue} ({', '.join(limits) or 'no limit'}){nodes}")
        )
    newer = "a newer one is there" if plan.has_newer else "none newer is there"
    pairs.append(("versions", f"failed on {_words(plan.failed_on)}; now {_words(plan.present)}: {newer}"))
    pairs += [(f"effect {effect.name}", repeated(effect)) for effect in plan.effects]
    if plan.looked_into < plan.runs:
        pairs.append(
            ("inspected", f"{plan.looked_into} of the runs; the other runs may repeat more effects than listed here")
        )
    if plan.is_partial:
        pairs.append(("counted", "the oldest dead letters of a large group; the actual numbers may be higher"))
    return pairs


def _more(plan: CampaignPlan) -> str:
    """Return a plus for counts that are lower bounds."""
    return "+" if plan.is_partial else ""


def _tasks(plan: CampaignPlan) -> str:
    """Return for example `30 tasks in 2 runs`; tasks outside runs count too."""
    runs = f" in {plan.runs}{_more(plan)} {'run' if plan.runs == 1 else 'runs'}" if plan.runs else ""
    return f"{plan.tasks}{_more(plan)} {'task' if plan.tasks == 1 else 'tasks'}{runs}"


def repeated(effect: RepeatedEffect) -> str:
    """Return what a re-drive does to effects of one name: `3 with a receipt, 1 may repeat, 2 can be undone`."""
    undone = f", {effect.compensable} can be undone (`holdfast effect compensate`)" if effect.compensable else ""
    return f"{effect.receipts} with a receipt, {effect.unknown} may repeat{undone}"


def _words(versions: list[str]) -> str:
    return ", ".join(version or "unnamed" for version in versions) or "no worker"


@campaign.command("list")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most this many.")
def list_(limit: int) -> None:
    """List campaigns, newest first."""
    from holdfast.operations.campaigns import ListCampaigns, list_campaigns

    shell = the_shell()
    rows = shell.ask(list_campaigns, ListCampaigns(limit=limit)).campaigns
    emit_rows(shell, rows, _columns(), empty="No campaigns yet.")


def _columns() -> list[Column[CampaignView]]:
    return [
        Column(title="CAMPAIGN", text=lambda row: row.campaign_id),
        state_column(),
        Column(title="NAME", text=lambda row: row.name, shrinks=True),
        Column(title="LETTERS", text=lambda row: compact(row.total), plain=lambda row: row.total, right=True),
        Column(title="DONE", text=lambda row: compact(row.succeeded), plain=lambda row: row.succeeded, right=True),
        Column(title="RETURNED", text=lambda row: str(row.returned), right=True, optional=True),
        Column(title="OUT", text=lambda row: str(row.outstanding), right=True, optional=True),
        Column(title="BY", text=lambda row: row.started_by, shrinks=True, optional=True),
        Column(
            title="STARTED",
            text=lambda row: age(row.started_at),
            plain=lambda row: row.started_at.isoformat(),
            optional=True,
        ),
        Column(title="NOTE", text=lambda row: row.note, stretch=True),
    ]


@campaign.command()
@click.argument("campaign_id")
@click.option("--watch", is_flag=True, help="Follow it to its end; exit 1 if it stops.")
def show(campaign_id: str, watch: bool) -> None:
    """Show one campaign and its progress."""
    shell = the_shell()
    raise SystemExit(shell.run(_show(shell, campaign_id, watch)))


async def _show(shell: Shell, campaign_id: str, watch: bool) -> int:
    from holdfast.operations.campaigns import OfCampaign, show_campaign

    async with shell.retrying_client() if watch else shell.operation_client() as operation_client:
        if watch:
            return await _follow(shell, operation_client, campaign_id)
        view = await operation_client.ask(show_campaign, OfCampaign(campaign_id=campaign_id))
    if shell.is_json:
        emit_json(view)
        return OK
    _print(shell, view)
    return OK


def _print(shell: Shell, view: CampaignView) -> None:
    pairs: list[tuple[str, object]] = [
        ("campaign", view.campaign_id),
        ("name", view.name),
        ("state", state_text(view.state) if shell.is_table else view.state),
        ("progress", bar(view) if shell.is_table else f"{_ended(view)}/{view.total}"),
        ("now", view.note or "–"),
        ("group", view.fingerprint),
        ("queues", ", ".join(view.queues)),
        ("reason", view.reason),
        ("started", f"{moment(view.started_at, utc=shell.utc)} by {view.started_by}"),
        ("pace", f"canary of {view.canary}, then at most {view.at_once} at once"),
        ("letters", f"{view.released} released, {view.outstanding} out, {view.succeeded} succeeded"),
        ("trouble", f"{view.returned} failed the same way, {view.failed} another way, {view.canceled} canceled"),
    ]
    optional: list[tuple[str, object | None]] = [
        ("resumed by", view.resumed_by),
        ("approved by", view.approved_by or ("not approved yet" if view.needs_approval else None)),
        ("delayed until", view.rests_until and moment(view.rests_until, utc=shell.utc)),
        ("waits for", view.newer_than is not None and f"a worker newer than {view.newer_than or 'unnamed'}"),
        ("leg", view.leg if view.leg > 1 else None),
        ("ended", view.ended_at and moment(view.ended_at, utc=shell.utc)),
    ]
    emit_pairs(shell, pairs + [(name, value) for name, value in optional if value], hues={"state": hue(view.state)})


def bar(view: CampaignView) -> str:
    """Return the progress of a campaign as a bar: ended, released and remaining tasks."""
    total = max(view.total, view.released, 1)
    done = BAR_CHARACTERS * _ended(view) // total
    out = -(-BAR_CHARACTERS * view.outstanding // total)
    out = min(out, BAR_CHARACTERS - done)
    line = "█" * done + "▒" * out + "░" * (BAR_CHARACTERS - done - out)
    return f"{line} {100 * _ended(view) // total} %  {view.succeeded}/{total}"


def _ended(view: CampaignView) -> int:
    return view.released - view.outstanding


async def _follow(shell: Shell, operation_client: OperationClient, campaign_id: str) -> int:
    """Print every change until the campaign ends or stops."""
    from holdfast.operations.campaigns import OfCampaign, show_campaign

    is_live = sys.stderr.isatty() and not shell.is_json
    last = ""
    while True:
        view = await operation_client.ask(show_campaign, OfCampaign(campaign_id=campaign_id))
        line = f"{state_text(view.state)}  {bar(view)}  {view.note}"
        if line != last:
            click.echo(f"\r\x1b[2K{line}" if is_live else line, err=True, nl=not is_live)
            last = line
        if view.state in ("completed", "stopped", "aborted"):
            break
        await asyncio.sleep(LOOK_SECONDS)
    if is_live:
        click.echo(err=True)
    _tell(shell, view)
    return OK if view.state == "completed" else FAILED


@campaign.command()
@click.argument("campaign_id")
def approve(campaign_id: str) -> None:
    """Approve a campaign that another operator started or resumed."""
    from holdfast.operations.campaigns import OfCampaign, approve_campaign

    shell = the_shell()
    _tell(shell, shell.ask(approve_campaign, OfCampaign(campaign_id=campaign_id)))


@campaign.command()
@click.argument("campaign_id")
@click.option("--reason", metavar="TEXT", default="", help="Reason, recorded in the audit log.")
def abort(campaign_id: str, reason: str) -> None:
    """Stop a campaign for good. Nothing more is released; released tasks continue."""
    from holdfast.operations.campaigns import SteerCampaign, abort_campaign

    shell = the_shell()
    _tell(shell, shell.ask(abort_campaign, SteerCampaign(campaign_id=campaign_id, reason=reason)))


@campaign.command()
@click.argument("campaign_id")
@click.option("--reason", metavar="TEXT", required=True, help="What has changed since it stopped.")
def resume(campaign_id: str, reason: str) -> None:
    """Resume a stopped campaign, beginning with another canary.

    It includes tasks that came back and tasks that failed in the same way since. A campaign started with --approval
    waits for another operator's approval again; one with --newer waits for a worker newer than those that failed.
    """
    from holdfast.operations.campaigns import SteerCampaign, resume_campaign

    shell = the_shell()
    _tell(shell, shell.ask(resume_campaign, SteerCampaign(campaign_id=campaign_id, reason=reason)))


def _tell(shell: Shell, view: CampaignView) -> None:
    if shell.is_json:
        emit_json(view)
        return
    click.echo(f"{view.campaign_id}\t{view.state}")
