"""The guards of workers that come over HTTP."""

from __future__ import annotations

from collections.abc import Sequence

from tests.guards.mutant import Mutant, killed, redundant

_DRAINS_ON = "a_drained_worker_that_was_silent_drains_on"
_BEAT = "a_remote_beat_needs_attempt_token_and_a_running_task"
_BUSY = "only_a_lease_that_is_held_is_busy"
_HELD = "an_exchange_renews_only_what_the_worker_holds"
_LEDGER = "a_remote_ledger_needs_attempt_token_and_a_running_task"
_UNNAMED = "an_exchange_finds_only_unnamed_tasks_of_its_worker"

REMOTE: Sequence[Mutant] = [
    *killed(
        "beat_workers",
        ("w.state in ('active', 'draining', 'lost')", "true", "a_worker_elsewhere_that_left_stays_gone"),
        ("w.drained_at is null", "true", _DRAINS_ON),
    ),
    *killed(
        "lease_holder",
        ("t.attempt = $2", "$2::int is not null", _LEDGER),
        ("and t.lease_token = $3", "and $3::uuid is not null", _LEDGER),
        ("and t.state = 'r'", "", _LEDGER),
    ),
    *killed(
        "heartbeat_task",
        ("t.attempt = $2", "$2::int is not null", _BEAT),
        ("t.lease_token = $3", "$3::uuid is not null", _BEAT),
        ("and t.state = 'r'", "", _BEAT),
        ("and t.lease_expires_at > holdfast.instant()", "", "a_remote_beat_revives_no_expired_lease"),
        ("for no key update of t skip locked", "", "a_remote_beat_waits_for_nobody"),
        ("busy.attempt = $2", "$2::int is not null", _BUSY),
        ("and busy.lease_token = $3", "and $3::uuid is not null", _BUSY),
        ("and busy.state = 'r'", "", _BUSY),
        ("and busy.lease_expires_at > holdfast.instant()", "", _BUSY),
    ),
    *killed(
        "renew_held",
        ("for no key update of t skip locked", "", "an_exchange_waits_for_nobody_to_renew"),
        ("and busy.worker_id = $1", "", _BUSY),
        ("and busy.lease_expires_at > holdfast.instant()", "", _BUSY),
        ("locked.worker_id = $1", "$1::int is not null", _HELD),
        ("and locked.lease_expires_at > holdfast.instant()", "", "an_exchange_revives_no_expired_lease"),
    ),
    redundant("renew_held", "and locked.state = 'r'", "", "live_invalid_rows: only a running row has a worker"),
    redundant("renew_held", "and busy.state = 'r'", "", "live_invalid_rows: only a running row has a worker"),
    *killed(
        "held_unnamed",
        ("t.worker_id = $1", "$1::int is not null", _UNNAMED),
        ("and t.lease_expires_at > holdfast.instant()", "", "an_exchange_revives_no_expired_lease"),
        ("and t.task_id <> all($2::bigint[])", "and $2::bigint[] is not null", _UNNAMED),
        ("for no key update of t", "", "an_exchange_that_waited_finds_nothing_it_lost"),
    ),
    redundant(
        "held_unnamed", "t.state = 'r' and t.due_at", "t.due_at", "live_invalid_rows: only a running row has a worker"
    ),
    redundant(
        "held_unnamed", "t.due_at is null and", "", "live_invalid_rows: a running row is not due; it is for the index"
    ),
    redundant(
        "held_unnamed",
        "t.tenant_id = (select w.tenant_id from holdfast.worker w where w.worker_id = $1)\n    and t.worker_id",
        "t.worker_id",
        "a worker holds nothing of another tenant; it is for the index",
    ),
]
