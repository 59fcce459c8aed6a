"""`holdfast campaign …`: re-drive a group of dead letters as one operation, watched and stoppable."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.complete import fingerprints
from holdfast.cli.shell import FAILED, OK, Shell, actor, the_shell
from holdfast.cli.show import Column, emit_json, emit_pairs, emit_rows
from holdfast.cli.tree import Group
from holdfast.cli.words import age, compact, hue, moment, state_text
from holdfast.core.campaign import AT_ONCE, CANARY
from holdfast.core.limits import required_reason
from holdfast.errors import NotFound

if TYPE_CHECKING:
    from holdfast.client.client import Client
    from holdfast.dispatcher.campaigns import CampaignPlan, CampaignView, RepeatedEffect

BAR_CHARACTERS = 40
LOOK_SECONDS = 0.5


@click.group(cls=Group)
def campaign() -> None:
    """Re-drive a group of dead letters, a few first and more while it goes well."""


@campaign.command()
@click.option("--group", "fingerprint", metavar="FP", required=True, help="The group.", shell_complete=fingerprints)
@click.option("--reason", metavar="TEXT", default="", help="Why it will work now; needed unless --dry-run.")
@click.option("--name", metavar="TEXT", default="", help="What to call it; the group unless said.")
@click.option("--canary", type=int, default=CANARY, show_default=True, help="Release this many first, and wait.")
@click.option("--at-once", type=int, default=AT_ONCE, show_default=True, help="At most this many are out at once.")
@click.option("--approval", is_flag=True, help="Wait until somebody else approves it.")
@click.option("--newer", is_flag=True, help="Wait for a worker newer than those that failed.")
@click.option("--dry-run", is_flag=True, help="Say what it would do, and do nothing.")
@click.option("--watch", is_flag=True, help="Follow it to its end; exit 1 if it stops.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def start(fingerprint: str, reason: str, dry_run: bool, watch: bool, yes: bool, **options: Any) -> None:
    """Begin a campaign: dry run, canary, then more and more while it succeeds.

    It stops by itself when the same fault comes back. Tasks wait in their own queue, behind other work and under its
    limits.
    """
    shell = the_shell()
    raise SystemExit(shell.run(_start(shell, fingerprint, reason, dry_run, watch, yes, options)))


async def _start(
    shell: Shell, fingerprint: str, reason: str, dry_run: bool, watch: bool, yes: bool, options: dict[str, Any]
) -> int:
    from holdfast.dispatcher.campaigns import plan_campaign, start_campaign
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    async with shell.client() as client:
        plan = await plan_campaign(client.engine, DEFAULT_TENANT_ID, fingerprint)
        if dry_run:
            tell_plan(shell, plan)
            return OK
        required_reason(reason)
        if not yes and not shell.is_json:
            _talk_plan(shell, plan)
        shell.confirm(f"Run {plan.tasks} tasks of group {fingerprint} again?", yes=yes)
        view = await start_campaign(
            client.engine,
            DEFAULT_TENANT_ID,
            fingerprint,
            actor=actor(),
            reason=reason,
            name=options["name"],
            canary=options["canary"],
            at_once=max(options["at_once"], options["canary"]),
            needs_approval=options["approval"],
            needs_newer_version=options["newer"],
        )
        if watch:
            return await _follow(shell, client, int(view.campaign_id))
    _tell(shell, view)
    shell.talk(f"Follow it: holdfast campaign show {view.campaign_id} --watch")
    return OK


def tell_plan(shell: Shell, plan: CampaignPlan) -> None:
    """Print what running a group again would do."""
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
        ("tasks", plan.tasks),
        ("failed", f"{moment(plan.first_seen, utc=shell.utc)} to {moment(plan.last_seen, utc=shell.utc)}"),
    ]
    for lane in plan.lanes:
        limits = [f"{lane.max_running} running"] if lane.max_running is not None else []
        limits += [f"{lane.starts_per_second:g}/s"] if lane.starts_per_second is not None else []
        limits += ["paused"] if lane.is_paused else []
        nodes = f", {lane.nodes} of them nodes of runs" if lane.nodes else ""
        pairs.append((lane.action, f"{lane.tasks} on queue {lane.queue} ({', '.join(limits) or 'no limit'}){nodes}"))
    newer = "a newer one is there" if plan.has_newer else "none newer is there"
    pairs.append(("versions", f"failed on {_words(plan.failed_on)}; now {_words(plan.present)}: {newer}"))
    return [*pairs, *((f"effect {one.name}", repeated(one)) for one in plan.effects)]


def repeated(effect: RepeatedEffect) -> str:
    """What a re-drive does to effects of one name: `3 with a receipt, 1 may repeat, 2 can be undone`."""
    undone = f", {effect.compensable} can be undone (`holdfast effect compensate`)" if effect.compensable else ""
    return f"{effect.receipts} with a receipt, {effect.unknown} may repeat{undone}"


def _words(versions: list[str]) -> str:
    return ", ".join(one or "unnamed" for one in versions) or "no worker"


@campaign.command("list")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most this many.")
def list_(limit: int) -> None:
    """List campaigns, newest first."""
    shell = the_shell()
    emit_rows(shell, shell.run(_list(shell, limit)), _columns(), empty="No campaigns yet.")


async def _list(shell: Shell, limit: int) -> list[CampaignView]:
    from holdfast.dispatcher.campaigns import list_campaigns
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    async with shell.client() as client:
        return await list_campaigns(client.engine, DEFAULT_TENANT_ID, limit=limit)


def _columns() -> list[Column[CampaignView]]:
    return [
        Column(title="CAMPAIGN", text=lambda row: row.campaign_id),
        Column(
            title="STATE",
            text=lambda row: state_text(row.state),
            plain=lambda row: row.state,
            hue=lambda row: hue(row.state),
        ),
        Column(title="NAME", text=lambda row: row.name),
        Column(title="LETTERS", text=lambda row: compact(row.total), plain=lambda row: row.total, right=True),
        Column(title="DONE", text=lambda row: compact(row.succeeded), plain=lambda row: row.succeeded, right=True),
        Column(title="RETURNED", text=lambda row: str(row.returned), right=True),
        Column(title="OUT", text=lambda row: str(row.outstanding), right=True),
        Column(title="BY", text=lambda row: row.started_by),
        Column(title="STARTED", text=lambda row: age(row.started_at), plain=lambda row: row.started_at.isoformat()),
        Column(title="NOTE", text=lambda row: row.note, stretch=True),
    ]


@campaign.command()
@click.argument("campaign_id")
@click.option("--watch", is_flag=True, help="Follow it to its end; exit 1 if it stops.")
def show(campaign_id: str, watch: bool) -> None:
    """Show one campaign and how far it is."""
    shell = the_shell()
    raise SystemExit(shell.run(_show(shell, _number(campaign_id), watch)))


async def _show(shell: Shell, campaign_id: int, watch: bool) -> int:
    from holdfast.dispatcher.campaigns import show_campaign
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    async with shell.client() as client:
        if watch:
            return await _follow(shell, client, campaign_id)
        view = await show_campaign(client.engine, DEFAULT_TENANT_ID, campaign_id)
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
        ("approved by", view.approved_by or ("nobody yet" if view.needs_approval else None)),
        ("waits for", view.newer_than is not None and f"a worker newer than {view.newer_than or 'unnamed'}"),
        ("leg", view.leg if view.leg > 1 else None),
        ("ended", view.ended_at and moment(view.ended_at, utc=shell.utc)),
    ]
    emit_pairs(shell, pairs + [(name, value) for name, value in optional if value], hues={"state": hue(view.state)})


def bar(view: CampaignView) -> str:
    """How far a campaign is, as a bar: what succeeded, what is out, what is left."""
    total = max(view.total, view.released, 1)
    done = BAR_CHARACTERS * _ended(view) // total
    out = -(-BAR_CHARACTERS * view.outstanding // total)
    out = min(out, BAR_CHARACTERS - done)
    line = "█" * done + "▒" * out + "░" * (BAR_CHARACTERS - done - out)
    return f"{line} {100 * _ended(view) // total} %  {view.succeeded}/{total}"


def _ended(view: CampaignView) -> int:
    return view.released - view.outstanding


async def _follow(shell: Shell, client: Client, campaign_id: int) -> int:
    """Show every change until the campaign ends or stops."""
    from holdfast.dispatcher.campaigns import show_campaign
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    is_live = sys.stderr.isatty() and not shell.is_json
    last = ""
    while True:
        view = await show_campaign(client.engine, DEFAULT_TENANT_ID, campaign_id)
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
    """Let a campaign begin that somebody else started."""
    shell = the_shell()
    _tell(shell, shell.run(_steer(shell, "approve_campaign", campaign_id, {})))


@campaign.command()
@click.argument("campaign_id")
@click.option("--reason", metavar="TEXT", default="", help="Why, for whoever reads the record.")
def abort(campaign_id: str, reason: str) -> None:
    """Release nothing more of a campaign, ever. What is out goes on."""
    shell = the_shell()
    _tell(shell, shell.run(_steer(shell, "abort_campaign", campaign_id, {"reason": reason})))


@campaign.command()
@click.argument("campaign_id")
@click.option("--reason", metavar="TEXT", required=True, help="What changed since it stopped.")
def resume(campaign_id: str, reason: str) -> None:
    """Go on with a campaign that stopped, beginning with another canary."""
    shell = the_shell()
    _tell(shell, shell.run(_steer(shell, "resume_campaign", campaign_id, {"reason": reason})))


async def _steer(shell: Shell, verb: str, campaign_id: str, given: dict[str, str]) -> CampaignView:
    from holdfast.dispatcher import campaigns
    from holdfast.store.catalog import DEFAULT_TENANT_ID

    async with shell.client() as client:
        act = getattr(campaigns, verb)
        view: CampaignView = await act(client.engine, DEFAULT_TENANT_ID, _number(campaign_id), actor=actor(), **given)
        return view


def _tell(shell: Shell, view: CampaignView) -> None:
    if shell.is_json:
        emit_json(view)
        return
    click.echo(f"{view.campaign_id}\t{view.state}")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise NotFound(f"There is no campaign {text[:80]!r}.", code="campaign_not_found")
    return int(text)
