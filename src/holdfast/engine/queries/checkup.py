"""Check-up: whether a database is fit for this engine and whether tasks make progress; each finding has its fix.
Read-only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import asyncpg

from holdfast.core.health.liveness import SILENT_SECONDS_MIN
from holdfast.core.values.duration import human
from holdfast.engine.epoch import CAUSES, RESTARTED
from holdfast.engine.wakeups.outbox import WakeView, read_wake
from holdfast.settings.settings import POSTGRES
from holdfast.store.database import MINIMUM_VERSION, TRANSIENT, Database
from holdfast.store.migrate import known, schema_version
from holdfast.store.sql.maintenance import epoch as epoch_sql
from holdfast.store.sql.queries import checkup as checkup_sql
from holdfast.store.tenant_role import statements_missing
from holdfast.wakeups.listener import hears

CLOCK_SECONDS_MAX = 1.0
TRANSACTION_SECONDS_MAX = 300.0
EVENT_SECONDS_MAX = 60.0
WAIT_SECONDS_MAX = 60.0
REPAIR_SECONDS_MAX = 10.0
WAKE_SECONDS_MAX = 10.0
NOTIFY_USAGE_MAX = 0.1
CONNECTION_SHARE_MAX = 0.9
BLOAT_BYTES_MIN = 64 * 1024 * 1024
BYTES_PER_ROW_MAX = 4096
SEQUENCE_SHARE_MAX = 0.5
REPLACED_SECONDS = 7 * 86_400.0
"""How long a check-up reports that the server was replaced."""


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check; `fix` is empty when it is OK."""

    name: str
    level: Level
    detail: str
    fix: str = ""


def finding(name: str, is_well: bool, detail: str, fix: str, *, otherwise: Level = Level.WARNING) -> Finding:
    """Build a finding that has its fix only when something is wrong."""
    return (
        Finding(name=name, level=Level.OK, detail=detail)
        if is_well
        else Finding(name=name, level=otherwise, detail=detail, fix=fix)
    )


async def check_up(
    database: Database, *, now: datetime, carrier: str = POSTGRES, silent_seconds: float = SILENT_SECONDS_MIN
) -> list[Finding]:
    """Check the server, the schema, the privileges and the progress of tasks. `now` is this machine's clock.

    `carrier` is the wake-up carrier that this process is configured for. Workers without a heartbeat for longer than
    `silent_seconds` are not counted as live.
    """
    found = [*_server(await checkup_sql.checkup_server(database), now=now), await _notifications(database)]
    try:
        version = await schema_version(database)
        found.append(_schema(version))
        if version:
            found += _rights(await checkup_sql.checkup_rights(database))
            found.append(_instant(await checkup_sql.checkup_instant(database)))
            found.append(_sequences(await checkup_sql.checkup_sequences(database, SEQUENCE_SHARE_MAX)))
            role = await checkup_sql.tenant_role(database)
            found += _row_level_security(await checkup_sql.checkup_row_level_security(database), role)
            found += _work(await checkup_sql.checkup_work(database, silent_seconds))
        if version >= len(known()):
            found.append(_epoch(await epoch_sql.checkup_epoch(database)))
            found.append(_wake(await read_wake(database), carrier))
    except asyncpg.InsufficientPrivilegeError as error:
        fix = "Use the schema's owner, or a role it granted everything in schema holdfast."
        found.append(Finding(name="rights", level=Level.FAILED, detail=str(error), fix=fix))
    return found


async def _notifications(database: Database) -> Finding:
    way = "through a pooler" if database.is_pooled else "without a pooler that shows itself"
    try:
        is_heard = await hears(database)
    except TRANSIENT as error:
        detail, fix = f"the direct way fails: {error}", "Check HOLDFAST_DIRECT_URL."
        return Finding(name="notifications", level=Level.FAILED, detail=detail, fix=fix)
    return finding(
        "notifications",
        is_heard,
        f"{way} they {'arrive' if is_heard else 'do not arrive, so workers find work by polling'}",
        "Set HOLDFAST_DIRECT_URL to the PostgreSQL behind the pooler.",
    )


def _server(row: checkup_sql.CheckupServerRow, *, now: datetime) -> Iterator[Finding]:
    yield finding(
        "version",
        row.version_number >= MINIMUM_VERSION,
        f"PostgreSQL {row.version}",
        "Use PostgreSQL 15 or newer.",
        otherwise=Level.FAILED,
    )
    yield finding(
        "primary",
        not row.is_replica,
        "it is a read-only replica" if row.is_replica else "it accepts writes",
        "Point HOLDFAST_URL at the primary.",
        otherwise=Level.FAILED,
    )
    unsafe = [name for name in ("fsync", "full_page_writes", "synchronous_commit") if getattr(row, name) == "off"]
    yield finding(
        "durability",
        not unsafe,
        f"{', '.join(unsafe)} off: accepted work can be lost in a crash" if unsafe else "commits survive a crash",
        f"Set {', '.join(f'{name} = on' for name in unsafe)} and restart PostgreSQL.",
        otherwise=Level.FAILED,
    )
    yield finding(
        "jit",
        row.jit == "off",
        "off for sessions of Holdfast" if row.jit == "off" else "on: the pooler lets no session switch it off",
        f'alter role "{row.me}" set jit = off',
    )
    skew = (now - row.at).total_seconds()
    yield finding(
        "clock",
        abs(skew) <= CLOCK_SECONDS_MAX,
        f"this machine is {human(abs(skew))} {'ahead of' if skew > 0 else 'behind'} the database",
        "Synchronise both with NTP; Holdfast itself goes by the database's clock.",
    )
    share = row.connections / row.connections_max
    yield finding(
        "connections",
        share <= CONNECTION_SHARE_MAX,
        f"{row.connections} of {row.connections_max} in use",
        "Raise max_connections, or run fewer worker processes.",
    )
    yield from _hygiene(row)


def _hygiene(row: checkup_sql.CheckupServerRow) -> Iterator[Finding]:
    yield finding(
        "autovacuum",
        row.autovacuum == "on",
        f"autovacuum is {row.autovacuum}",
        "Set autovacuum = on: only the hot table is vacuumed by Holdfast itself.",
    )
    age = row.oldest_transaction_seconds or 0.0
    yield finding(
        "xmin age",
        age <= TRANSACTION_SECONDS_MAX and not row.prepared_transactions,
        f"the oldest open transaction is {human(age)} old"
        + (f" ({row.oldest_transaction_of})" if age > TRANSACTION_SECONDS_MAX else "")
        + (f", {row.prepared_transactions} prepared" if row.prepared_transactions else ""),
        "End it (pg_stat_activity, pg_prepared_xacts): while it is open, finished rows cannot be cleaned up.",
    )
    writing = row.oldest_writer_seconds or 0.0
    yield finding(
        "events",
        writing <= EVENT_SECONDS_MAX,
        f"a transaction that writes has been open for {human(writing)} ({row.oldest_writer_of})"
        if writing > EVENT_SECONDS_MAX
        else "no open transaction holds them back",
        "End it (pg_terminate_backend): webhooks, streams and `run watch` show nothing that began after it.",
    )
    yield finding(
        "replication slots",
        not row.idle_slots,
        f"{row.idle_slots} inactive",
        "Drop replication slots without a consumer (pg_drop_replication_slot): they keep old rows and WAL.",
    )
    yield finding(
        "notify queue",
        row.notify_usage <= NOTIFY_USAGE_MAX,
        f"{100 * row.notify_usage:.0f} % used",
        "Some session listens inside an open transaction: end it.",
    )


def _schema(version: int) -> Finding:
    newest = len(known())
    return finding(
        "schema",
        version >= newest,
        f"at migration {version}, this version knows {newest}",
        "Run `holdfast migrate`.",
        otherwise=Level.FAILED,
    )


def _rights(row: checkup_sql.CheckupRightsRow) -> Iterator[Finding]:
    yield finding(
        "rights",
        row.has_usage and row.may_write and row.may_draw_ids,
        f"role {row.role} may read and write" if row.may_write else f"role {row.role} may not write",
        "As the owner: grant usage on schema holdfast, all on all tables and usage on all sequences in it "
        f"to {row.role}.",
        otherwise=Level.FAILED,
    )
    yield finding(
        "retention",
        row.is_owner,
        f"role {row.role} {'may' if row.is_owner else 'may not'} begin and drop blocks of history",
        "Run `holdfast server` as the schema's owner, or grant that role.",
    )


def _instant(row: checkup_sql.CheckupInstantRow) -> Finding:
    """Check that `holdfast.instant()` is the original: leases, due times and schedules use it. A test kit replaces it,
    and may have died before it put it back."""
    ahead = row.ahead_seconds
    off = f"{human(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} the database's" if ahead else "with it for now"
    return finding(
        "engine's clock",
        row.is_own,
        "it is the database's" if row.is_own else f"holdfast.instant() was replaced, and is {off}",
        "If no test uses this database: create or replace function holdfast.instant() returns timestamptz "
        "language sql stable parallel safe return statement_timestamp()",
    )


def _epoch(row: epoch_sql.CheckupEpochRow) -> Finding:
    """Report which server this is, whether it was replaced recently, and whether a replacement would be detected."""
    detail = f"epoch {row.epoch}, {CAUSES.get(row.cause, 'since it was made')} ({row.cause})"
    if row.differs not in (None, "unbound"):
        return Finding(
            name="epoch",
            level=Level.WARNING,
            detail=f"{detail}; since then {CAUSES[row.differs]}, and no process has begun to work here",
            fix="Start one (holdfast server, holdfast work), or run `holdfast migrate`.",
        )
    if not row.is_legible:
        return Finding(
            name="epoch",
            level=Level.WARNING,
            detail=f"{detail}; the owner of the schema may not read which cluster this is",
            fix="As a superuser: grant execute on function pg_control_system() to the owner of the schema.",
        )
    return finding(
        "epoch",
        row.cause in ("created", RESTARTED) or row.age_seconds > REPLACED_SECONDS,
        f"{detail}, {human(row.age_seconds)} ago",
        "What was committed last before may be missing: compare with what callers were told (docs/operate.md).",
    )


def _sequences(rows: list[checkup_sql.CheckupSequencesRow]) -> Finding:
    """Check the sequences: ids are never reused, so an exhausted sequence stops every insert that uses it."""
    used = ", ".join(f"{row.name} {100 * row.share:.0f} %" for row in rows)
    return finding(
        "ids",
        not rows,
        f"used up: {used}" if rows else "every sequence has more than half of its numbers left",
        "Find what draws so many: names of queues, actions or policies that are new each time?",
    )


def _wake(view: WakeView, carrier: str) -> Finding:
    """Check that hints are written for the configured carrier, and that they are sent."""
    if carrier != POSTGRES and not view.is_on:
        return Finding(
            name="wake-ups",
            level=Level.WARNING,
            detail=f"HOLDFAST_WAKE is {carrier}, and no hints are written: workers only poll",
            fix="As the owner: holdfast wake on",
        )
    if not view.is_on:
        return Finding(name="wake-ups", level=Level.OK, detail="over PostgreSQL")
    if view.away_seconds is not None:
        return Finding(
            name="wake-ups",
            level=Level.WARNING,
            detail=f"{view.carrier} has been away for {human(view.away_seconds)}: {view.away_detail}",
            fix=f"Bring {view.carrier} back; until then workers poll and nothing is lost.",
        )
    return finding(
        "wake-ups",
        view.late_seconds <= WAKE_SECONDS_MAX,
        f"hints wait unsent for {human(view.late_seconds)}"
        if view.late_seconds > WAKE_SECONDS_MAX
        else f"over {view.carrier or carrier}, {view.outstanding} hints outstanding",
        "Start a relay (holdfast server, HOLDFAST_WAKE naming the carrier), or stop writing hints: holdfast wake off",
    )


def _row_level_security(
    row: checkup_sql.CheckupRowLevelSecurityRow, role: checkup_sql.TenantRoleRow
) -> Iterator[Finding]:
    missing = statements_missing(has_role=role.has_role, may_become=role.may_become, role=role.me)
    said = {
        (False, False): "there is no role holdfast_tenant",
        (True, False): "this role may not become holdfast_tenant",
    }
    yield finding(
        "tenants",
        not missing and not row.open_tables,
        said.get((role.has_role, role.may_become))
        or (f"no wall on {', '.join(row.open_tables)}" if row.open_tables else "row-level security keeps them apart"),
        f"As an administrator of the database: {' '.join(missing)} Then run `holdfast migrate`."
        if missing
        else "Run `holdfast migrate`.",
        otherwise=Level.FAILED if missing else Level.WARNING,
    )
    yield finding(
        "row security",
        row.is_engine,
        "the engine sees every row" if row.is_engine else "row-level security hides every row from this role",
        "Use the schema's owner or a role that is a member of it; or run `holdfast migrate` after granting.",
        otherwise=Level.FAILED,
    )


def _work(row: checkup_sql.CheckupWorkRow) -> Iterator[Finding]:
    waited = row.oldest_queued_seconds or 0.0
    silent = f", {row.silent_workers} of them silent" if row.silent_workers else ""
    yield finding(
        "workers",
        row.workers > row.silent_workers,
        f"{row.workers} present{silent}",
        "Start one: holdfast work APP",
    )
    yield finding(
        "oldest queued",
        waited <= WAIT_SECONDS_MAX,
        f"{human(waited)} old" if waited else "nothing waits",
        "Ask it: holdfast task list --state queued, then holdfast task why ID.",
    )
    late = max(row.overdue_seconds or 0.0, row.unreaped_seconds or 0.0)
    yield finding(
        "maintenance loops",
        late <= REPAIR_SECONDS_MAX,
        f"due work or expired leases untouched for {human(late)}"
        if late > REPAIR_SECONDS_MAX
        else "nothing is overdue",
        "Start them: holdfast server (or any `holdfast work` without --no-loops).",
        otherwise=Level.FAILED,
    )
    paused = row.paused or []
    yield finding(
        "paused queues",
        not paused,
        ", ".join(paused) or "none",
        f"If that is over: holdfast queue resume {paused[0]}" if paused else "",
    )
    size, rows = row.live_bytes, row.live_rows + row.dead_rows
    yield finding(
        "bloat",
        size < BLOAT_BYTES_MIN or size / max(1, row.live_rows) < BYTES_PER_ROW_MAX,
        f"the hot table has {size / 1024 / 1024:.1f} MB for about {rows} rows, {row.dead_rows} of them dead",
        "Something keeps old rows (see xmin age); then vacuum full holdfast.live in a quiet moment.",
    )
