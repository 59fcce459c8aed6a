"""The guards of claims, and of workers that are started for an attempt."""

from __future__ import annotations

from collections.abc import Sequence

from tests.guards.mutant import Mutant, killed, redundant

_SERVED = "a_worker_claims_by_name_only_what_it_serves"

CLAIMING: Sequence[Mutant] = [
    *killed(
        "claim",
        ("q.paused_at is null", "true", "a_queue_paused_since_the_plan_gives_nothing"),
        ("or q.queue_id = any($8::int[])", "or $8::int[] is not null", "a_limit_holds_for_who_was_told_of_a_lane"),
        (
            "or n.tenant_id = any($9::int[])",
            "or $9::int[] is not null",
            "a_tenants_limit_holds_for_who_was_told_of_a_lane",
        ),
        ("w.state = 'active'", "true", "a_worker_that_drains_claims_nothing"),
        ("and w.tenant_id = l.tenant_id", "", "a_worker_claims_nothing_of_another_tenant"),
        ("where t.state = 'q' and (t.lane_id", "where (t.lane_id", "queued_tasks_behind_a_running_one_are_claimed"),
        ("for no key update skip locked", "", "claimers_do_not_wait_for_one_another"),
    ),
    *killed(
        "claim_task",
        ("and t.state = 'q'", "", "a_running_task_cannot_be_claimed_by_name"),
        ("and w.state = 'active'", "", "a_worker_that_drains_claims_nothing"),
        ("and w.tenant_id = t.tenant_id", "", "a_worker_claims_nothing_of_another_tenant"),
        ("and q.paused_at is null", "", "a_task_of_a_paused_queue_cannot_be_claimed_by_name"),
        ("and l.action = any($5::text[])", "and $5::text[] is not null", _SERVED),
        ("or q.name = any($6)", "or true", _SERVED),
    ),
    *killed(
        "held_by",
        ("t.worker_id = $1", "$1::int is not null", "a_worker_finds_only_its_own_leases_again"),
        ("t.lease_expires_at > holdfast.instant()", "true", "an_expired_lease_is_not_found_again"),
        ("known.task_id = t.task_id and ", "", "a_worker_finds_only_its_own_leases_again"),
        ("and known.lease_token = t.lease_token", "", "a_worker_finds_only_its_own_leases_again"),
    ),
    redundant(
        "held_by", "t.state = 'r' and t.due_at", "t.due_at", "live_invalid_rows: only a running row has a worker"
    ),
    redundant(
        "held_by", "t.due_at is null and", "", "live_invalid_rows: a running row is not due; it is for the index"
    ),
    redundant(
        "held_by",
        "t.tenant_id = (select w.tenant_id from holdfast.worker w where w.worker_id = $1)\n    and t.worker_id",
        "t.worker_id",
        "a worker holds nothing of another tenant; it is for the index",
    ),
    Mutant(
        statement="held_by",
        guard="for no key update of t",
        replacement="",
        killed_by="a_worker_that_waited_does_not_find_what_it_lost",
    ),
    *killed(
        "held_task",
        ("t.worker_id = $2", "$2::int is not null", "a_worker_finds_a_named_lease_of_its_own_alone"),
        ("and t.lease_expires_at > holdfast.instant()", "", "a_worker_finds_a_named_lease_of_its_own_alone"),
    ),
    redundant("held_task", "t.state = 'r' and ", "", "live_invalid_rows: only a running row has a worker"),
    *killed(
        "try_limits",
        (
            "where pg_try_advisory_xact_lock(1752132965, q.queue_id)",
            "",
            "a_limited_queue_starts_no_more_than_its_limit",
        ),
    ),
    *killed(
        "lock_limit",
        (
            "select pg_advisory_xact_lock(1752132965, $1)",
            "select $1::int",
            "a_named_task_of_a_limited_queue_waits_for_other_counts",
        ),
    ),
    *killed(
        "spend_starts",
        ("and q.starts_per_second is not null", "", "starts_are_counted_only_where_they_are_limited"),
    ),
]

LAUNCHING: Sequence[Mutant] = [
    *killed(
        "reserve",
        ("t.attempt + 1 = $4", "true", "a_stale_launcher_reserves_no_later_attempt"),
        ("s.expires_at > holdfast.instant()", "true", "a_reservation_needs_the_slot_it_was_made_with"),
    ),
    redundant(
        "attach",
        "t.attempt = $2 and t.state = 'v'",
        "t.attempt = $2",
        "attaching deletes the tokens of its attempt, so a running one has none to attach with",
    ),
    *killed(
        "take_slot",
        (
            "where not holdfast.is_slot_held(s)\nreturning",
            "where true\nreturning",
            "a_slot_that_was_taken_meanwhile_is_not_taken_again",
        ),
        ("or not holdfast.is_slot_held(s)", "", "the_slot_of_an_attempt_that_is_over_is_free"),
    ),
    *killed("free_slots", ("not holdfast.is_slot_held(s)", "true", "a_slot_of_an_open_attempt_is_not_freed")),
    *killed(
        "launched",
        ("h.attempt = $2", "$2::int is not null", "only_the_launch_of_the_attempt_is_written_down"),
        ("and h.holder = $3", "and $3::uuid is not null", "a_launch_taken_back_is_not_written_down"),
    ),
    *killed(
        "lock_reservation",
        (
            "t.attempt = $2 and t.lease_token = $3 and t.state = 'v'",
            "$2::int + 1 > 0 and $3::uuid is not null",
            "a_failed_launch_takes_nothing_back_from_a_worker_that_came",
        ),
        ("for update of t", "", "a_failed_launch_waits_for_a_worker_that_attaches"),
    ),
    redundant(
        "fail_launch",
        "h.attempt = $2 and h.holder = $3",
        "h.holder = $3 and $2::int is not null",
        "a holder belongs to one launch (launch_holder); the attempt is there for the key",
    ),
    redundant(
        "unreserve",
        "t.attempt = $2 and t.lease_token = $3 and t.state = 'v'",
        "$2::int is not null and $3::uuid is not null",
        "lock_reservation looked at the same row in the same transaction, and holds it",
    ),
    *killed(
        "adopt_launch",
        (
            "o.state = 'p' and o.launching_until <= holdfast.instant()",
            "o.state = 'p'",
            "a_launch_under_way_is_not_taken_over",
        ),
        (
            "r.attempt = o.attempt and r.state = 'v'\n          and r.lease_expires_at > holdfast.instant()",
            "true",
            "a_launch_whose_reservation_is_over_is_not_taken_over",
        ),
        ("for update of o skip locked", "", "two_that_take_over_get_different_launches"),
    ),
    *killed(
        "launches_to_check",
        ("h.state = 'l'", "true", "only_launches_nobody_attached_to_are_asked_about"),
        ("for update of h skip locked", "", "one_of_two_asks_about_a_launch"),
        ("h.attempt = due.attempt", "true", "looking_at_a_launch_marks_it_alone"),
        ("t.attempt = seen.attempt and t.state = 'v'", "true", "only_open_reservations_are_asked_about"),
    ),
    *killed(
        "put_back_launch", ("h.attempt = $2", "$2::int is not null", "putting_back_a_launch_leaves_the_next_alone")
    ),
    *killed(
        "delete_launch",
        ("h.attempt = $2", "$2::int is not null", "forgetting_a_launch_leaves_the_next_alone"),
        ("deleted.state <> 'f'", "true", "a_launch_that_failed_dispatched_no_attempt"),
    ),
]
