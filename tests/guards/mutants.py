"""Every guard of every statement that changes something, and what is left of the statement without it.

A mutant takes one guard away and keeps the statement valid. `killed_by` names the check that must then fail. A guard
that nothing can notice because another one covers it says so in `redundant_because`; those stay few.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.guards.mutant import Mutant
from tests.guards.mutant import killed as _of
from tests.guards.mutant import redundant as _redundant
from tests.guards.running import RUNNING

_SERVED = "a_worker_claims_by_name_only_what_it_serves"
_DRAINS_ON = "a_drained_worker_that_was_silent_drains_on"

CLAIMING: Sequence[Mutant] = [
    *_of(
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
    *_of(
        "claim_task",
        ("and t.state = 'q'", "", "a_running_task_cannot_be_claimed_by_name"),
        ("and w.state = 'active'", "", "a_worker_that_drains_claims_nothing"),
        ("and w.tenant_id = t.tenant_id", "", "a_worker_claims_nothing_of_another_tenant"),
        ("and q.paused_at is null", "", "a_task_of_a_paused_queue_cannot_be_claimed_by_name"),
        ("and l.action = any($5::text[])", "and $5::text[] is not null", _SERVED),
        ("or q.name = any($6)", "or true", _SERVED),
    ),
    *_of(
        "held_by",
        ("t.worker_id = $1", "$1::int is not null", "a_worker_finds_only_its_own_leases_again"),
        ("t.lease_expires_at > holdfast.instant()", "true", "an_expired_lease_is_not_found_again"),
        ("known.task_id = t.task_id and ", "", "a_worker_finds_only_its_own_leases_again"),
        ("and known.lease_token = t.lease_token", "", "a_worker_finds_only_its_own_leases_again"),
    ),
    _redundant(
        "held_by", "t.state = 'r' and t.worker_id", "t.worker_id", "live_sound: only a running row has a worker"
    ),
    Mutant(
        statement="held_by",
        guard="for no key update of t",
        replacement="",
        killed_by="a_worker_that_waited_does_not_find_what_it_lost",
    ),
    *_of(
        "held_task",
        ("t.worker_id = $2", "$2::int is not null", "a_worker_finds_a_named_lease_of_its_own_alone"),
        ("and t.lease_expires_at > holdfast.instant()", "", "a_worker_finds_a_named_lease_of_its_own_alone"),
    ),
    _redundant("held_task", "t.state = 'r' and ", "", "live_sound: only a running row has a worker"),
    *_of(
        "lock_limits",
        (
            "select pg_advisory_xact_lock(1752132965, q.queue_id)",
            "select",
            "a_limited_queue_starts_no_more_than_its_limit",
        ),
    ),
    *_of(
        "spend_starts",
        ("and q.starts_per_second is not null", "", "starts_are_counted_only_where_they_are_limited"),
    ),
]

LAUNCHING: Sequence[Mutant] = [
    *_of(
        "reserve",
        ("t.attempt + 1 = $4", "true", "a_stale_launcher_reserves_no_later_attempt"),
        ("s.expires_at > holdfast.instant()", "true", "a_reservation_needs_the_slot_it_was_made_with"),
    ),
    _redundant(
        "attach",
        "t.attempt = $2 and t.state = 'v'",
        "t.attempt = $2",
        "attaching deletes the tokens of its attempt, so a running one has none to attach with",
    ),
    *_of(
        "take_slot",
        (
            "where not holdfast.is_slot_held(s)\nreturning",
            "where true\nreturning",
            "a_slot_that_was_taken_meanwhile_is_not_taken_again",
        ),
        ("or not holdfast.is_slot_held(s)", "", "the_slot_of_an_attempt_that_is_over_is_free"),
    ),
    *_of("free_slots", ("not holdfast.is_slot_held(s)", "true", "a_slot_of_an_open_attempt_is_not_freed")),
    *_of(
        "launched",
        ("h.attempt = $2", "$2::int is not null", "only_the_launch_of_the_attempt_is_written_down"),
        ("and h.holder = $3", "and $3::uuid is not null", "a_launch_taken_back_is_not_written_down"),
    ),
    *_of(
        "lock_reservation",
        (
            "t.attempt = $2 and t.lease_token = $3 and t.state = 'v'",
            "$2::int + 1 > 0 and $3::uuid is not null",
            "a_failed_launch_takes_nothing_back_from_a_worker_that_came",
        ),
        ("for update of t", "", "a_failed_launch_waits_for_a_worker_that_attaches"),
    ),
    _redundant(
        "fail_launch",
        "h.attempt = $2 and h.holder = $3",
        "h.holder = $3 and $2::int is not null",
        "a holder belongs to one launch (launch_holder); the attempt is there for the key",
    ),
    _redundant(
        "unreserve",
        "t.attempt = $2 and t.lease_token = $3 and t.state = 'v'",
        "$2::int is not null and $3::uuid is not null",
        "lock_reservation looked at the same row in the same transaction, and holds it",
    ),
    *_of(
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
    *_of(
        "look_at_launches",
        ("h.state = 'l'", "true", "only_launches_nobody_attached_to_are_asked_about"),
        ("for update of h skip locked", "", "one_of_two_asks_about_a_launch"),
        ("h.attempt = due.attempt", "true", "looking_at_a_launch_marks_it_alone"),
        ("t.attempt = seen.attempt and t.state = 'v'", "true", "only_open_reservations_are_asked_about"),
    ),
    *_of("put_back_launch", ("h.attempt = $2", "$2::int is not null", "putting_back_a_launch_leaves_the_next_alone")),
    *_of("forget_launch", ("h.attempt = $2", "$2::int is not null", "forgetting_a_launch_leaves_the_next_alone")),
]

LEASING: Sequence[Mutant] = [
    *_of(
        "heartbeat",
        ("and given.lease_token = held.lease_token", "", "a_stale_token_renews_nothing"),
        ("held.state = 'r'", "true", "a_reservation_is_not_kept_alive_by_beats"),
        ("held.lease_expires_at > holdfast.instant()", "true", "an_expired_lease_is_never_revived"),
        ("for no key update of t", "", "a_beat_that_waited_does_not_renew_the_next_lease"),
    ),
    *_of(
        "expired",
        ("t.lease_expires_at <= holdfast.instant()", "true", "a_valid_lease_is_not_reaped"),
        ("or t.cancel_at <= holdfast.instant()", "", "a_cancel_past_its_grace_is_forced"),
        ("w.state = 'gone'", "true", "a_valid_lease_is_not_reaped"),
        ("t.worker_id in (select", "false and t.worker_id in (select", "work_of_a_buried_worker_is_reaped_at_once"),
        ("t.state = 'r' and", "", "the_time_limit_does_not_count_before_anybody_attached"),
        ("secs => $2 +", "secs => $2 * 0 +", "a_time_limit_that_nobody_keeps_is_kept_here"),
        (
            ") <= holdfast.instant())",
            ") <= holdfast.instant() and false)",
            "a_time_limit_that_nobody_keeps_is_kept_here",
        ),
        ("for update of t skip locked", "", "reapers_do_not_wait_for_one_another"),
    ),
    _redundant(
        "expired",
        "t.state in ('r', 'v')",
        "true",
        "queued and waiting rows have neither lease, worker nor cancel; the condition is there for the index",
    ),
    _redundant(
        "expired",
        "t.lease_expires_at > holdfast.instant() as is_leased",
        "true as is_leased",
        "it chooses the words in which a time limit that passed is told",
    ),
    *_of(
        "reserve",
        ("and t.state = 'q'", "", "a_running_task_cannot_be_reserved"),
        ("q.paused_at is not null", "false", "a_task_of_a_paused_queue_cannot_be_reserved"),
    ),
    *_of(
        "attach",
        ("t.attempt = $2", "$2::int is not null", "only_the_exact_attempt_can_be_attached"),
        ("$3::bytea = any(h.token_hashes)", "$3::bytea is not null", "only_the_right_token_can_be_attached"),
        ("and h.token_expires_at > holdfast.instant()", "", "a_token_past_its_time_cannot_be_used"),
        ("and h.attempt = t.attempt and", "and", "a_token_of_an_earlier_attempt_cannot_be_used"),
        ("and h.attempt = taken.attempt", "", "attaching_spends_the_tokens_of_its_attempt_alone"),
        ("t.lease_expires_at > holdfast.instant()", "true", "a_reservation_past_its_time_cannot_be_attached"),
        ("and w.state = 'active'", "", "a_worker_that_drains_attaches_nothing"),
        ("and w.tenant_id = t.tenant_id", "", "a_worker_of_another_tenant_attaches_nothing"),
    ),
    *_of(
        "promote",
        ("due_at <= holdfast.instant()", "due_at is not null", "nothing_is_promoted_before_its_time"),
        ("for update skip locked", "", "promoting_does_not_wait_for_a_locked_task"),
    ),
    _redundant("promote", "state = 'w' and due_at", "due_at", "live_sound: only a waiting row has a due time"),
]

SETTLING: Sequence[Mutant] = [
    *_of("lock_tasks", ("for update of t", "", "a_mixed_batch_and_a_beat_do_not_lock_each_other_out")),
    *_of(
        "settle_completed",
        ("and given.attempt = held.attempt", "", "a_report_must_name_the_current_attempt"),
        ("and given.lease_token = held.lease_token", "", "a_report_must_carry_the_current_token"),
        ("held.state = 'r'", "true", "a_reservation_cannot_be_completed"),
        ("for update of t", "", "a_completion_that_waited_cannot_end_the_next_attempt"),
    ),
    *_of(
        "settle_otherwise",
        ("and given.attempt = held.attempt", "", "a_report_must_name_the_current_attempt"),
        ("and given.lease_token = held.lease_token", "", "a_report_must_carry_the_current_token"),
        ("for update of t", "", "a_failure_that_waited_cannot_end_the_next_attempt"),
        ("held.cancel_at is not null", "false", "a_requested_cancel_wins_over_a_retry"),
    ),
    _redundant(
        "settle_otherwise",
        "held.state in ('r', 'v')",
        "true",
        "live_sound: a row without a lease has no token to match",
    ),
    *_of(
        "find_settled",
        (
            "g.attempt = a.attempt and g.lease_token = a.lease_token",
            "g.attempt = a.attempt",
            "a_repeated_report_answers_as_before_and_only_its_own",
        ),
        (
            "g.attempt = f.attempt and g.lease_token = f.lease_token",
            "g.attempt = f.attempt",
            "a_repeated_report_answers_as_before_and_only_its_own",
        ),
        (
            "a.output is not distinct from g.output",
            "true",
            "a_repeated_report_that_says_something_else_is_refused",
        ),
        (
            "(f.code, f.message) is not distinct from (g.code, g.message)",
            "true",
            "a_repeated_report_that_says_something_else_is_refused",
        ),
    ),
]

ASKING: Sequence[Mutant] = [
    *_of(
        "cancel",
        ("and t.tenant_id = $2", "and $2::int is not null", "another_tenant_cannot_cancel"),
        ("for no key update of t", "", "a_cancel_that_waited_sees_who_holds_the_task_now"),
        ("held where state <> 'r'", "held", "a_running_task_is_asked_and_a_queued_one_ends"),
        ("where state = 'v'", "where true", "a_reservation_that_is_canceled_leaves_its_attempt"),
    ),
    _redundant(
        "cancel",
        "held where state = 'r'",
        "held",
        "a row the statement deletes cannot be changed by it as well; which of the two wins would be a matter of luck",
    ),
    *_of(
        "retry_now",
        ("and t.tenant_id = $2", "and $2::int is not null", "another_tenant_cannot_retry"),
        ("and t.is_retrying", "", "only_a_failed_task_is_retried"),
    ),
    _redundant("retry_now", "and t.state = 'w'", "", "live_sound: only a waiting row waits for a retry"),
    *_of(
        "enqueue_keyed",
        ("on conflict (tenant_id, key) do nothing", "", "a_key_stands_for_one_task"),
        ("select distinct on (key) key", "select key", "a_key_stands_for_one_task"),
    ),
    *_of("find_keys", ("i.tenant_id = $1", "$1::int is not null", "a_key_belongs_to_its_tenant")),
    *_of(
        "ensure_queue",
        ("on conflict (tenant_id, name) do nothing", "", "names_are_interned_once_by_whoever_comes_second"),
    ),
    *_of(
        "ensure_lane",
        ("on conflict (tenant_id, queue_id, action) do nothing", "", "names_are_interned_once_by_whoever_comes_second"),
    ),
    _redundant(
        "ensure_lane",
        "where q.tenant_id = $1 and",
        "where",
        "a foreign key of (tenant, queue) refuses a lane on another tenant's queue",
    ),
    *_of(
        "ensure_policy",
        ("on conflict (tenant_id, digest) do nothing", "", "names_are_interned_once_by_whoever_comes_second"),
    ),
]

KEEPING: Sequence[Mutant] = [
    *_of(
        "beat_worker",
        ("me.state in ('active', 'draining', 'lost')", "true", "a_worker_that_left_stays_gone"),
        ("me.drained_at is null", "true", _DRAINS_ON),
    ),
    *_of("retire_worker", ("and state in ('active', 'draining', 'lost')", "", "a_worker_that_left_stays_gone")),
    *_of("drain_worker", ("and state = 'active'", "", "a_worker_that_left_stays_gone")),
    *_of(
        "lose_workers",
        ("state in ('active', 'draining')", "true", "a_worker_that_left_stays_gone"),
        (
            "beat_at < holdfast.instant() - make_interval(secs => $1)",
            "make_interval(secs => $1) is not null",
            "only_silent_workers_are_shown_as_lost",
        ),
    ),
    *_of(
        "add_notes",
        ("and t.attempt = g.attempt", "", "a_note_needs_the_current_lease"),
        ("and t.lease_token = g.lease_token", "", "a_note_needs_the_current_lease"),
        ("and t.state = 'r'", "", "a_note_needs_the_current_lease"),
    ),
    *_of(
        "pause_queue",
        ("q.tenant_id = $1 and", "", "another_tenants_queue_is_left_alone"),
        ("and q.paused_at is null", "", "a_second_pause_keeps_the_first"),
    ),
    *_of(
        "resume_queue",
        ("q.tenant_id = $1 and", "", "another_tenants_queue_is_left_alone"),
        ("and q.paused_at is not null", "", "a_second_pause_keeps_the_first"),
    ),
    *_of("limit_queue", ("q.tenant_id = $1 and", "", "another_tenants_queue_is_left_alone")),
    *_of(
        "lock_queue",
        ("q.tenant_id = $1 and", "$1::int is not null and", "another_tenants_queue_is_not_what_is_recorded"),
        ("for no key update of q", "", "what_is_recorded_as_before_was_so_until_the_change"),
    ),
    *_of(
        "append_audit",
        ("h.tenant_id = $1 and", "$1::int is not null and", "a_row_is_appended_to_its_own_chain"),
        ("and h.seq = $2", "and $2::bigint is not null", "a_row_is_appended_only_behind_the_last"),
    ),
    *_of(
        "lock_blocks",
        ("pg_try_advisory_xact_lock(1752132966, 0)", "true", "one_process_at_a_time_changes_blocks"),
    ),
    *_of("lock_spans", ("pg_advisory_xact_lock(1752132967, 0)", "true", "a_span_does_not_lead_back_to_a_block_before")),
    *_of(
        "enter_block",
        ("when s.last_value < b.first_id", "when true", "ids_never_go_back"),
        ("when p.last_value < b.first_span", "when true", "ids_never_go_back"),
    ),
    *_of(
        "old_blocks",
        ("n.began_at < promised.at", "promised.at is not null", "young_history_is_kept"),
        (
            "and not exists (select from holdfast.live t where t.task_id between b.first_id and b.last_id)",
            "",
            "history_in_use_is_kept",
        ),
        ("e.ended_at >= promised.at", "false", "what_ended_lately_is_kept"),
        ("or (e.state = 'f' and e.has_letter is not true)", "", "a_failure_nobody_dealt_with_is_kept"),
        ("where d.task_id = e.task_id", "where false", "history_in_use_is_kept"),
        ("or (d.state = 'ignored' and e.state = 'f'", "or (false", "a_failure_that_was_left_is_kept"),
    ),
    *_of(
        "forget_ended",
        (
            "and e.ended_at < holdfast.instant() - make_interval(secs => $2::double precision * 86400)",
            "and $2::double precision > 0",
            "what_ended_lately_is_kept",
        ),
        ("and d.state in ('resolved', 'ignored')", "", "what_ended_lately_is_kept"),
    ),
    *_of("forget_completed_runs", ("and r.state = 'c'", "", "only_runs_that_completed_go_at_once_with_their_block")),
    _redundant(
        "lock_old_runs", "r.state in ('f', 'x') and", "", "those that completed are taken away next, and held so"
    ),
    _redundant(
        "lock_old_runs",
        "for update of r",
        "",
        "who runs a run again takes away the ends of its tasks, and these are waited for; it stands for runs without",
    ),
    *_of(
        "forget_events",
        (
            "where at < holdfast.instant() - make_interval(secs => $1::double precision * 86400)",
            "where $1::double precision > 0",
            "young_history_is_kept",
        ),
    ),
    *_of(
        "forget_workers",
        (
            "w.ended_at < holdfast.instant() -",
            "w.ended_at < holdfast.instant() + interval '9 days' -",
            "workers_in_use_are_not_forgotten",
        ),
        (
            "and not exists (select from holdfast.live t where t.state = 'r' and t.worker_id = w.worker_id)",
            "",
            "workers_in_use_are_not_forgotten",
        ),
    ),
    _redundant(
        "forget_workers",
        "w.state in ('gone', 'lost')",
        "true",
        "only workers that left have an end (verified invariant)",
    ),
]

GUARDING: Sequence[Mutant] = [
    *_of(
        "claim",
        (
            "b.state = 'c' or (b.state = 'h' and b.breaker_id = any($7::int[]))",
            "$7::int[] is not null",
            "a_breaker_opened_since_the_plan_gives_nothing",
        ),
        (
            "b.state = 'h' and b.breaker_id = any($7::int[])",
            "b.state = 'h' and $7::int[] is not null",
            "a_lane_on_trial_gives_nothing_unless_granted",
        ),
    ),
    *_of(
        "claim_task",
        ("l.lane_id = t.lane_id and b.state <> 'c'", "l.lane_id = t.lane_id", "a_closed_breaker_holds_nothing_back"),
        ("b.breaker_id <> $4", "$4::int is null", "no_more_named_trials_than_granted"),
    ),
    *_of(
        "reserve",
        ("l.lane_id = t.lane_id and b.state <> 'c'", "l.lane_id = t.lane_id", "a_closed_breaker_holds_nothing_back"),
        ("b.breaker_id <> $3", "$3::int is null", "no_more_named_trials_than_granted"),
    ),
    _redundant("claim_task", "b.state = 'o' or", "false or", "an open breaker grants no trial, so $4 never names it"),
    _redundant("reserve", "b.state = 'o' or", "false or", "an open breaker grants no trial, so $3 never names it"),
    *_of(
        "tally_outcomes",
        (
            "a.attempt = given.attempt and a.xmin = pg_current_xact_id()::xid",
            "a.attempt = given.attempt",
            "a_repeated_report_counts_once",
        ),
        (
            "f.attempt = given.attempt and f.xmin = pg_current_xact_id()::xid",
            "f.attempt = given.attempt",
            "a_repeated_report_counts_once",
        ),
        (
            "b.state = 'h' and s.started_at >= b.since and not s.is_failure",
            "b.state = 'h' and not s.is_failure",
            "an_attempt_from_before_it_opened_is_no_trial",
        ),
        (
            "b.state = 'h' and s.started_at >= b.since and s.is_failure",
            "b.state = 'h' and s.is_failure",
            "an_attempt_from_before_it_opened_is_no_trial",
        ),
        ("where state = 'c'", "where true", "an_open_breaker_counts_nothing"),
    ),
    *_of(
        "open_breaker",
        (
            'b.state = $2::text::"char" and b.since = $3',
            "$2::text is not null and $3::timestamptz is not null",
            "workers_that_see_the_same_failures_open_it_once",
        ),
    ),
    *_of(
        "pass_trials",
        (
            "b.state = 'h' and b.since = $2",
            "$2::timestamptz is not null",
            "a_trial_that_waited_passes_nothing_reopened",
        ),
    ),
    _redundant(
        "close_breaker",
        "b.state = 'h' and b.since = $2",
        "$2::timestamptz is not null",
        "pass_trials holds the row in the same transaction",
    ),
    *_of(
        "lock_trials",
        (
            "select pg_advisory_xact_lock(1752132968, b.breaker_id)",
            "select",
            "claimers_at_once_start_no_more_trials_than_granted",
        ),
    ),
    *_of(
        "begin_trials",
        (
            "b.trial_at <= holdfast.instant()",
            "b.trial_at is not null",
            "a_named_task_of_an_open_breaker_is_not_started",
        ),
        ("for update of b skip locked", "for update of b", "claimers_do_not_wait_for_a_breaker_that_is_moving"),
    ),
    _redundant("begin_trials", "b.state = 'o' and", "", "breaker_trial: only an open breaker has a time to be tried"),
    *_of("forget_breaker", ("b.tenant_id = $1 and", "$1::int is not null and", "guards_belong_to_their_tenant")),
    *_of("steer_breaker", ("b.tenant_id = $1 and", "$1::int is not null and", "guards_belong_to_their_tenant")),
    *_of("steer_breaker", ("for update of b", "", "what_a_guard_was_before_is_what_the_change_replaced")),
    *_of(
        "declare_quota",
        ("q.tenant_id = $1 and", "", "guards_belong_to_their_tenant"),
        ("k.tenant_id = $1 and", "", "guards_belong_to_their_tenant"),
        ("for update of k", "", "what_a_guard_was_before_is_what_the_change_replaced"),
    ),
    *_of("forget_quota", ("k.tenant_id = $1 and", "", "guards_belong_to_their_tenant")),
    _redundant(
        "forget_quota", "q.tenant_id = $1 and", "", "a quota of this tenant names a queue of this tenant: a foreign key"
    ),
    *_of(
        "hasten_retries",
        ("f.task_id = t.task_id and f.attempt = t.attempt", "f.task_id = t.task_id", "a_backoff_is_never_cut_short"),
        ("l.tenant_id = $1 and", "$1::int is not null and", "guards_belong_to_their_tenant"),
        ("for update of t skip locked", "", "hastening_does_not_wait_for_a_locked_task"),
    ),
    _redundant("hasten_retries", "t.state = 'w' and", "", "live_sound: only a waiting row waits for a retry"),
    _redundant(
        "hasten_retries", "q.tenant_id = $1 and q.name", "q.name", "the lane beside it is of this tenant already"
    ),
    *_of("lock_quotas", ("for update of k", "", "reconcilers_at_once_let_no_more_go_than_one")),
    *_of(
        "promote",
        (
            "and exists (select from holdfast.quota k where holdfast.covers(k, l))",
            "and false",
            "a_window_has_no_more_retries_than_allowed",
        ),
    ),
    *_of(
        "settle_otherwise",
        (
            "join holdfast.quota k on holdfast.covers(k, l)",
            "join holdfast.quota k on false",
            "a_retry_without_delay_does_not_escape_a_quota",
        ),
        ("fenced.outcome <> 'e' and exists", "exists", "a_released_task_waits_for_no_quota"),
    ),
    _redundant(
        "admit_retries",
        "t.state = 'w' and t.due_at <= holdfast.instant()",
        "true",
        "promote locked the rows in the same transaction",
    ),
    _redundant(
        "postpone_retries",
        "t.state = 'w' and t.is_retrying and t.due_at <= holdfast.instant()",
        "true",
        "promote locked the rows in the same transaction",
    ),
]

AUTHORING: Sequence[Mutant] = [
    *_of("claim_run_key", ("on conflict (tenant_id, key) do nothing", "", "a_key_stands_for_one_run")),
]

SCHEDULING: Sequence[Mutant] = [
    *_of(
        "create_schedule",
        ("on conflict (tenant_id, name) do nothing", "", "a_name_stands_for_one_schedule"),
    ),
    *_of(
        "change_schedule",
        ("s.tenant_id = $1", "$1::int is not null", "another_tenants_schedule_is_left_alone"),
        ("and s.origin = $3", "and $3::text is not null", "only_its_keeper_changes_a_schedule"),
    ),
    *_of(
        "take_schedule",
        ("and s.revision = $2", "and $2::int is not null", "nothing_fires_by_rules_that_changed_meanwhile"),
        ("for no key update of s skip locked", "", "schedulers_do_not_wait_for_one_another"),
    ),
    *_of(
        "hold_schedule",
        ("and s.revision = $2", "and $2::int is not null", "nothing_fires_by_rules_that_changed_meanwhile"),
        ("for no key update of s", "", "a_hand_and_a_scheduler_see_each_other"),
    ),
    *_of(
        "close_firings",
        ("and f.state = 'f'", "", "what_waits_goes_when_the_way_is_free"),
        (
            "and not exists (select from holdfast.live t where t.task_id = f.task_id)",
            "",
            "a_firing_that_runs_holds_back_the_next",
        ),
        ("and r.state = 'o'", "", "a_run_that_is_over_is_out_of_the_way"),
    ),
    *_of("release_slot", ("and f.state = 'w'", "", "a_slot_that_fired_does_not_wait_any_more")),
    *_of("drop_slots", ("and f.state = 'w'", "", "a_slot_that_fired_does_not_wait_any_more")),
    _redundant(
        "advance_schedule",
        "and s.next_at is not distinct from $2",
        "and ($2::timestamptz is null or true)",
        "only who holds the lock of take_schedule moves a schedule on",
    ),
    *_of(
        "void_slots",
        ("and f.slot_at > holdfast.instant()", "", "a_clock_that_goes_back_leaves_what_came_before"),
        ("and f.state in ('k', 'm')", "", "a_clock_that_goes_back_undoes_no_firing"),
    ),
    *_of(
        "trouble_schedule",
        ("and s.revision = $2", "and $2::int is not null", "nothing_fires_by_rules_that_changed_meanwhile"),
    ),
    *_of(
        "pause_schedule",
        ("s.tenant_id = $1 and", "", "another_tenants_schedule_is_left_alone"),
        ("and s.paused_at is null", "", "a_second_pause_of_a_schedule_keeps_the_first"),
    ),
    *_of(
        "resume_schedule",
        ("s.tenant_id = $1 and", "", "another_tenants_schedule_is_left_alone"),
        ("and s.paused_at is not null", "", "a_second_pause_of_a_schedule_keeps_the_first"),
    ),
    *_of("delete_schedule", ("s.tenant_id = $1 and", "", "another_tenants_schedule_is_left_alone")),
    *_of("forget_slots", ("and (f.is_over or f.state in ('k', 'm'))", "", "slots_in_use_are_not_forgotten")),
]

_BEAT = "a_remote_beat_needs_attempt_token_and_a_running_task"
_HELD = "an_exchange_renews_only_what_the_worker_holds"
_LEDGER = "a_remote_ledger_needs_attempt_token_and_a_running_task"
_UNNAMED = "an_exchange_finds_only_unnamed_tasks_of_its_worker"

REMOTE: Sequence[Mutant] = [
    *_of(
        "beat_workers",
        ("w.state in ('active', 'draining', 'lost')", "true", "a_worker_elsewhere_that_left_stays_gone"),
        ("w.drained_at is null", "true", _DRAINS_ON),
    ),
    *_of(
        "lease_holder",
        ("t.attempt = $2", "$2::int is not null", _LEDGER),
        ("and t.lease_token = $3", "and $3::uuid is not null", _LEDGER),
        ("and t.state = 'r'", "", _LEDGER),
    ),
    *_of(
        "heartbeat_task",
        ("t.attempt = $2", "$2::int is not null", _BEAT),
        ("t.lease_token = $3", "$3::uuid is not null", _BEAT),
        ("and t.state = 'r'", "", _BEAT),
        ("and t.lease_expires_at > holdfast.instant()", "", "a_remote_beat_revives_no_expired_lease"),
    ),
    *_of(
        "renew_held",
        ("for no key update of t", "", "an_exchange_that_waited_renews_nothing_it_lost"),
        ("held.worker_id = $1", "$1::int is not null", _HELD),
        ("and held.lease_expires_at > holdfast.instant()", "", "an_exchange_revives_no_expired_lease"),
    ),
    _redundant("renew_held", "and held.state = 'r'", "", "live_sound: only a running row has a worker"),
    *_of(
        "held_unnamed",
        ("t.worker_id = $1", "$1::int is not null", _UNNAMED),
        ("and t.lease_expires_at > holdfast.instant()", "", "an_exchange_revives_no_expired_lease"),
        ("and t.task_id <> all($2::bigint[])", "and $2::bigint[] is not null", _UNNAMED),
        ("for no key update of t", "", "an_exchange_that_waited_finds_nothing_it_lost"),
    ),
    _redundant(
        "held_unnamed", "t.state = 'r' and t.worker_id", "t.worker_id", "live_sound: only a running row has a worker"
    ),
]

_AUTHORITY = "an_action_needs_authority_where_an_effect_is_governed"
_UNDER_WAY = "an_effect_under_way_is_not_sent_by_another"

ACTING: Sequence[Mutant] = [
    *_of(
        "open_effect",
        ("t.attempt = $2", "$2::int is not null", "an_effect_needs_the_current_lease"),
        ("t.lease_token = $3", "$3::uuid is not null", "an_effect_needs_the_current_lease"),
        ("t.tenant_id = $4 and t.state", "$4::int is not null and t.state", "an_effect_needs_the_current_lease"),
        ("and t.state = 'r'", "", "a_reservation_sends_nothing"),
        ("and t.lease_expires_at > holdfast.instant()", "", "an_expired_lease_sends_nothing"),
        ("for key share of t", "", "a_gate_that_waited_does_not_open_for_the_lease_before"),
        (
            "a.tenant_id = lease.tenant_id and a.effect = $6 and a.action in",
            "a.effect = $6 and a.action in",
            "the_authority_of_another_tenant_is_not_ours",
        ),
        (
            "where a.tenant_id = lease.tenant_id and a.effect = $6)",
            "where a.effect = $6)",
            "the_authority_of_another_tenant_is_not_ours",
        ),
        ("a.effect = $6 and a.action in (lease.action, '')", "a.effect = $6", _AUTHORITY),
        ("order by a.action desc", "order by a.action", _AUTHORITY),
        ("join ruled on ruled.is_allowed", "join ruled on true", _AUTHORITY),
        ("e.ctid = (select seen.version from seen)", "true", "a_sender_that_began_meanwhile_is_not_overtaken"),
        ("for no key update of e", "", "what_is_undone_meanwhile_is_not_answered_with_its_receipt"),
        ("e.digest = excluded.digest", "true", "other_arguments_do_not_pass_under_a_key"),
        ("and e.compensated_by is null", "", "an_undone_effect_is_not_done_again"),
        (
            "(e.task_id, e.generation) <> (excluded.task_id, excluded.generation)",
            "true",
            "a_refusal_stands_until_a_redrive",
        ),
        ("e.state in ('p', 'u')", "e.state <> 'r'", "a_receipt_is_given_again_and_nothing_is_sent"),
        ("or e.state = 'r' and", "or", "a_receipt_is_given_again_and_nothing_is_sent"),
        ("o.task_id = e.task_id and o.lease_token = e.lease_token", "o.task_id <> e.task_id", _UNDER_WAY),
        ("and o.state = 'r'", "", "a_reserved_attempt_is_not_under_way"),
        ("and (o.task_id, o.lease_token) <> (excluded.task_id, excluded.lease_token)", "", _UNDER_WAY),
        (
            "(o.task_id, o.lease_token) <> (excluded.task_id, excluded.lease_token)",
            "o.lease_token <> excluded.lease_token",
            "tasks_of_one_claim_do_not_share_an_effect",
        ),
    ),
    *_of(
        "answer_effect",
        ("t.attempt = $2", "$2::int is not null", "an_answer_needs_the_current_lease"),
        ("t.lease_token = $3", "$3::uuid is not null", "an_answer_needs_the_current_lease"),
        ("t.tenant_id = $4 and t.state", "$4::int is not null and t.state", "an_answer_needs_the_current_lease"),
        ("and t.state = 'r'", "", "a_reservation_answers_nothing"),
        ("for key share of t", "", "an_answer_that_waited_is_not_kept_for_the_lease_before"),
        ("and e.lease_token = lease.lease_token", "", "an_answer_belongs_to_the_lease_that_opened"),
        ("and e.state = 'p'", "", "an_answer_is_final_and_may_be_repeated"),
        (
            'and e.state = $6::text::"char"\n',
            "\n",
            "an_answer_is_final_and_may_be_repeated",
        ),
        ("and e.task_id = lease.task_id", "", "tasks_of_one_claim_do_not_share_an_effect"),
        (
            "e.tenant_id = $4 and e.key = $5 and e.task_id = $1 and e.lease_token = $3",
            "e.tenant_id = $4 and e.key = $5",
            "an_answer_belongs_to_the_lease_that_opened",
        ),
        ("and e.task_id = $1", "and $1::bigint > 0", "tasks_of_one_claim_do_not_share_an_effect"),
    ),
    _redundant(
        "answer_effect",
        "select e.task_id from holdfast.effect e where e.tenant_id = $4 and e.key = $5",
        "select max(e.task_id) from holdfast.effect e where e.key = $5",
        "it chooses between two refusals: whether it helps to ask again",
    ),
    *_of(
        "keep_step",
        ("t.attempt = $2", "$2::int is not null", "a_step_needs_the_current_lease"),
        ("t.lease_token = $3", "$3::uuid is not null", "a_step_needs_the_current_lease"),
        ("t.tenant_id = $4 and t.state", "$4::int is not null and t.state", "a_step_needs_the_current_lease"),
        ("and t.state = 'r'", "", "a_reservation_keeps_no_step"),
        ("for key share of t", "", "a_step_that_waited_is_not_kept_for_the_lease_before"),
        ("on conflict (task_id, generation, name, digest) do nothing", "", "a_step_is_kept_once"),
    ),
    *_of("rule_authority", ("where a.is_allowed <> excluded.is_allowed", "", "a_ruling_replaces_the_one_before")),
    *_of(
        "lock_compensation",
        ("e.tenant_id = $1 and", "$1::int is not null and", "another_tenants_effect_is_not_marked_as_undone"),
        ("for update of e", "", "one_caller_at_a_time_undoes_an_effect"),
    ),
    *_of(
        "keep_compensation",
        ("e.tenant_id = $1 and", "$1::int is not null and", "another_tenants_effect_is_not_marked_as_undone"),
        ("and e.compensated_by is null", "", "an_effect_is_undone_once"),
    ),
]

WRITING: Sequence[Mutant] = [
    *_of(
        "ensure_dataset",
        ("on conflict (tenant_id, name) do nothing", "", "a_dataset_may_be_declared_by_many"),
    ),
    *_of(
        "lock_dataset",
        ("d.tenant_id = $1 and", "$1::int is not null and", "another_tenants_dataset_is_not_there"),
        ("for no key update of d", "", "declarations_wait_for_one_another"),
    ),
    *_of(
        "open_stage",
        ("t.attempt = $2", "$2::int is not null", "staging_needs_the_current_lease"),
        ("t.lease_token = $3", "$3::uuid is not null", "staging_needs_the_current_lease"),
        ("and t.state = 'r'", "", "a_reservation_stages_nothing"),
        ("and g.state in ('b', 'c')", "", "a_superseded_generation_takes_no_rows"),
        ("and g.tenant_id = t.tenant_id", "", "another_tenants_dataset_takes_no_rows"),
        ("on conflict (generation_id, task_id) do nothing", "", "a_task_writes_in_several_parts"),
    ),
    *_of(
        "grow_stage",
        ("and s.lease_token = $2", "and $2::uuid is not null", "a_lost_attempt_does_not_add_to_the_next_ones_part"),
        ("and s.rows = $4", "and $4::bigint is not null", "a_batch_said_twice_counts_once"),
    ),
    *_of(
        "lock_fence",
        ("t.attempt = $2", "$2::int is not null", "rows_need_the_current_attempt"),
    ),
    _redundant("lock_fence", "and t.lease_token = $3", "", "take_stage names the token too"),
    _redundant("lock_fence", "and t.state = 'r'", "", "only a running attempt can have staged under its token"),
    _redundant("lock_fence", "for update of t", "", "settling locked the tasks of the batch before"),
    *_of(
        "lock_generations",
        ("for no key update of g", "", "a_commit_that_waited_for_a_cut_over_finds_itself_superseded"),
    ),
    *_of(
        "lock_datasets",
        ("for no key update of d", "", "who_waits_for_a_dataset_holds_none_of_its_generations"),
    ),
    *_of(
        "take_stage",
        ("s.lease_token = $2 and", "$2::uuid is not null and", "what_a_lost_attempt_staged_is_swept"),
    ),
    _redundant("add_commit", "and g.state in ('b', 'c')", "", "the state was looked at under the generation's lock"),
    *_of(
        "stale_stages",
        ("and t.lease_token = s.lease_token", "", "what_a_lost_attempt_staged_is_swept"),
        ("for update of s skip locked", "", "sweepers_do_not_wait_for_one_another"),
    ),
    *_of(
        "forget_stage",
        ("s.lease_token = $2 and", "$2::uuid is not null and", "sweeping_leaves_the_part_of_the_next_attempt"),
    ),
    *_of(
        "forget_commits",
        (
            "o.committed_at < holdfast.instant() - make_interval(secs => $1::double precision * 86400)",
            "$1::double precision > 0",
            "young_commits_are_kept",
        ),
    ),
    *_of(
        "add_builds",
        ("and g.state in ('b', 'c')", "", "a_generation_that_leaves_gets_no_more_work"),
        ("for share of g", "", "a_generation_that_leaves_gets_no_more_work"),
    ),
    *_of("supersede", ("and g.state = 'c'", "", "a_cut_over_leaves_other_generations_as_they_are")),
    _redundant("cut_over", "and g.state in ('b', 'o')", "", "the state was looked at under the dataset's lock"),
    *_of(
        "roll_back",
        ('and g.state = any($3::"char"[])', 'and $3::"char"[] is not null', "the_current_generation_cannot_be_dropped"),
    ),
    *_of(
        "lock_leaving",
        ("and g.state = 'r'", "", "tables_are_dropped_once"),
        ("and not g.is_kept", "", "a_kept_generation_keeps_its_tables"),
        ("for update of g skip locked", "", "who_drops_tables_does_not_wait_for_another"),
    ),
    _redundant("end_generation", "and g.state = 'r'", "", "lock_leaving found it in this state and holds it"),
]

_LOCKED_ANYWAY = "the update locks the same rows; the order keeps two of them from waiting for each other in a circle"
_JUDGED_AGAIN = "`core.dead.judge` looks at the state of the locked letter, and what it requeues has a guard of its own"
_ASKED = "d.state in ('retry_requested', 'retrying')"
_PAUSED_RUN = "a_paused_run_is_left_by_who_asks_for_none_in_particular"

RECOVERING: Sequence[Mutant] = [
    *_of(
        "tell_letters",
        ("d.state in ('open', 'retry_requested', 'retrying', 'ignored')", "true", "what_is_resolved_stays_so"),
        ("d.state = 'retrying' and not d.wants_sweep", "true", "only_a_letter_that_retried_is_roused"),
    ),
    _redundant("tell_letters", "for update of d", "", _LOCKED_ANYWAY),
    *_of(
        "rouse_forgotten",
        ("d.state = 'retrying' and not d.wants_sweep", "true", "only_a_letter_that_retried_is_roused"),
        (
            """e.state = 'f'
      or r.state = 'f'
      or exists (
        select from holdfast.attempt a
        where a.task_id = d.task_id and a.state = 'c' and a.generation > d.generation
      )
      or exists (
        select from holdfast.past_items p
        join holdfast.node n on n.run_id = p.run_id and n.node_no = p.node_no
        where p.run_id = d.run_id and d.task_id between p.items_first and p.items_first + p.items - 1 and n.state = 'c'
      )""",
            "true",
            "a_letter_under_way_is_not_roused",
        ),
        ("for update of d skip locked", "", "sweeps_do_not_wait_for_one_another"),
    ),
    *_of(
        "park_left",
        (
            "(d.wants_sweep or (d.state = 'retrying' and not d.wants_sweep)) and",
            "",
            "only_a_letter_that_was_asked_for_is_parked",
        ),
        ("and d.campaign_id is null", "", "only_a_letter_that_was_asked_for_is_parked"),
        (
            "(e.state = 'x' or r.state = 'x' or (r.state = 'c' and n.state in ('k', 'u')))",
            "true",
            "a_letter_under_way_is_not_roused",
        ),
        ("for update of d skip locked", "", "only_a_letter_that_was_asked_for_is_parked"),
    ),
    *_of(
        "adopt_tasks",
        ("e.state = 'f' and", "", "a_task_is_adopted_once_and_only_if_it_failed"),
        ("and e.has_letter is null", "", "a_task_is_adopted_once_and_only_if_it_failed"),
    ),
    *_of(
        "lock_letters",
        ("and d.campaign_id is null", "", "a_campaigns_letters_are_its_own"),
        ("for update of d skip locked", "", "sweeps_do_not_wait_for_one_another"),
    ),
    _redundant("lock_letters", f"{_ASKED} and d.wants_sweep", "true", _JUDGED_AGAIN),
    *_of(
        "lock_run_letters",
        ("and d.campaign_id is null", "", "a_campaigns_letters_are_its_own"),
        ("and d.tenant_id = $2", "and $2::int is not null", "another_tenants_letters_are_left_alone"),
    ),
    _redundant("lock_run_letters", f"{_ASKED} and d.wants_sweep", "true", _JUDGED_AGAIN),
    _redundant(
        "lock_run_letters", "for update of d", "", "the run's lock lets one sweep at a time judge and requeue it"
    ),
    *_of("resolve_superseded", (f"and {_ASKED}", "", "a_letter_leaves_only_the_states_it_may")),
    *_of("exhaust_letters", (f"and {_ASKED}", "", "a_letter_leaves_only_the_states_it_may")),
    *_of("mark_dispatched", (f"and {_ASKED}", "", "a_letter_leaves_only_the_states_it_may")),
    *_of(
        "request_letters",
        ("and d.state in ('open', 'ignored')", "", "a_letter_leaves_only_the_states_it_may"),
        ("and 'retry' = any(d.recovery_options)", "", "a_letter_without_the_option_is_not_retried"),
    ),
    *_of(
        "ignore_letters",
        ("and d.tenant_id = $5", "and $5::int is not null", "another_tenants_letters_are_left_alone"),
        ("d.state in ('open', 'retry_requested', 'retrying')", "true", "a_letter_leaves_only_the_states_it_may"),
        ("and d.state = 'ignored'", "", "a_letter_leaves_only_the_states_it_may"),
        ("$4 = 'abandoned' and", "", "what_is_ignored_can_only_be_abandoned"),
        ("and d.disposition <> 'abandoned'", "", "what_is_ignored_can_only_be_abandoned"),
        ("for update of d", "", "who_waited_for_a_letter_judges_it_as_it_is"),
    ),
    *_of(
        "close_letters",
        ("and d.tenant_id = $4", "and $4::int is not null", "another_tenants_letters_are_left_alone"),
        ("and d.state in ('open', 'retry_requested', 'retrying')", "", "a_letter_leaves_only_the_states_it_may"),
        ("for update of d", "", "who_waited_for_a_letter_judges_it_as_it_is"),
    ),
    *_of(
        "hold_run_letters",
        ("and d.tenant_id = $2", "and $2::int is not null", "another_tenants_letters_are_left_alone"),
        ("and d.state <> 'resolved'", "", "what_is_resolved_stays_so"),
        ("for update of d", "", "a_retry_of_a_run_waits_for_who_judges_its_letters"),
    ),
    *_of(
        "lock_task_letters",
        ("and d.tenant_id = $2", "and $2::int is not null", "another_tenants_letters_are_left_alone"),
        ("and d.state <> 'resolved'", "", "what_is_resolved_stays_so"),
    ),
    _redundant("lock_task_letters", "for update of d", "", "the end of the task can be taken away only once"),
    *_of(
        "revive_tasks",
        ("and e.tenant_id = $2", "and $2::int is not null", "only_a_failed_task_of_the_tenant_is_revived"),
        ("and e.state = 'f'", "", "only_a_failed_task_of_the_tenant_is_revived"),
        ("and e.run_id is null", "", "a_node_is_not_revived_without_its_run"),
    ),
    _redundant("revive_tasks", "for update of e", "", _LOCKED_ANYWAY),
    *_of(
        "take_letter",
        ("o.tenant_id = $1 and", "$1::int is not null and", "another_tenants_letters_are_left_alone"),
        ("o.state = 'open' and", "", "only_an_open_letter_in_sight_is_taken"),
        ("o.campaign_id is null and", "", "a_campaigns_letters_are_its_own"),
        ("'retry' = any(o.recovery_options)", "true", "a_letter_without_the_option_is_not_retried"),
        (
            "(o.hidden_until is null or o.hidden_until <= holdfast.instant())",
            "true",
            "only_an_open_letter_in_sight_is_taken",
        ),
        ("r.state = 'o' and r.paused_at is not null", "false", _PAUSED_RUN),
        ("for update of o skip locked", "", "reinjecting_does_not_wait_for_another"),
    ),
    *_of(
        "lock_families",
        ("r.tenant_id = $2 and", "$2::int is not null and", "a_deletion_holds_a_run_and_the_one_that_started_it"),
        ("for no key update of r", "", "a_deletion_holds_a_run_and_the_one_that_started_it"),
    ),
    *_of(
        "delete_dead",
        ("and e.tenant_id = $2", "and $2::int is not null", "only_what_failed_for_good_is_deleted"),
        ("and e.state = 'f'", "", "only_what_failed_for_good_is_deleted"),
        ("and e.run_id is null", "", "only_what_failed_for_good_is_deleted"),
        ("and r.tenant_id = $2", "and $2::int is not null", "only_a_run_that_is_over_is_deleted"),
        ("and r.state in ('f', 'x')", "", "only_a_run_that_is_over_is_deleted"),
        ("and p.state = 'o'", "and false", "only_a_run_that_is_over_is_deleted"),
        ("for update of e", "", "a_deletion_that_waited_for_a_re_drive_deletes_nothing"),
        ("for update of r", "", "a_deletion_that_waited_for_a_re_drive_deletes_nothing"),
    ),
    *_of("hand_back_letter", ("and d.state = 'open'", "", "a_letter_leaves_only_the_states_it_may")),
    *_of(
        "lease_dead_task",
        ("where l.expires_at <= holdfast.instant() or l.holder = excluded.holder", "", "a_lease_has_one_holder"),
    ),
    *_of("release_dead_task", ("and l.holder = $2", "and $2::text is not null", "a_lease_has_one_holder")),
    *_of(
        "forget_letters",
        ("o.state = 'resolved' and", "", "only_old_resolved_letters_are_forgotten"),
        (
            "o.changed_at < holdfast.instant() - make_interval(secs => $1::double precision * 86400)",
            "$1::double precision > 0",
            "only_old_resolved_letters_are_forgotten",
        ),
        (
            "and not exists (select from holdfast.ended e where e.task_id = o.task_id)",
            "",
            "only_old_resolved_letters_are_forgotten",
        ),
        ("where l.expires_at <= holdfast.instant() - interval '1 hour'", "", "only_old_resolved_letters_are_forgotten"),
    ),
]

_NEWEST = (
    "and not exists (select from holdfast.dead_letter n where n.task_id = d.task_id"
    " and n.dead_letter_id > d.dead_letter_id)"
)

_CAN_GO = "and d.state in ('open', 'ignored') and (d.state = 'open' or holdfast.can_go_again(d.task_id))"

CAMPAIGNING: Sequence[Mutant] = [
    *_of(
        "start_campaign",
        ("d.tenant_id = $1 and", "$1::int is not null and", "a_campaign_is_its_tenants"),
        (_CAN_GO, "", "a_campaign_counts_what_stands_for_a_task"),
        ("or holdfast.can_go_again(d.task_id)", "or true", "a_campaign_counts_what_stands_for_a_task"),
        ("'retry' = any(d.recovery_options)", "true", "a_campaign_counts_what_stands_for_a_task"),
        (_NEWEST, "", "a_campaign_counts_what_stands_for_a_task"),
        ("where counted.total > 0", "", "a_campaign_over_nothing_does_not_begin"),
        (
            "on conflict (tenant_id, fingerprint) where state not in ('completed', 'aborted') do nothing",
            "",
            "one_campaign_at_a_time_works_on_a_group",
        ),
    ),
    *_of("lock_campaign", ("for update of c skip locked", "", "campaigns_do_not_wait_for_one_another")),
    _redundant(
        "collect_campaign",
        "and d.state = 'retrying'\n",
        "\n",
        "only letters that this statement saw retrying come here; it stands against a change in that very moment",
    ),
    *_of(
        "take_campaign_letters",
        ("d.tenant_id = $1 and", "$1::int is not null and", "a_campaign_is_its_tenants"),
        (_CAN_GO, "", "a_campaign_takes_only_what_is_its_to_take"),
        ("or holdfast.can_go_again(d.task_id)", "or true", "a_campaign_takes_only_what_is_its_to_take"),
        ("and d.dead_letter_id <= $3", "and $3::bigint is not null", "a_campaign_takes_only_what_is_its_to_take"),
        ("'retry' = any(d.recovery_options)", "true", "a_campaign_takes_only_what_is_its_to_take"),
        ("for update of d skip locked", "", "campaigns_do_not_wait_for_one_another"),
    ),
    *_of(
        "next_campaign_letters",
        ("and q.paused_at is not null", "and false", "a_paused_queue_gets_nothing_of_a_campaign"),
        ("r.state = 'o' and r.paused_at is not null", "false", _PAUSED_RUN),
    ),
    *_of("move_campaign", ("and c.state = $2", "and $2::text is not null", "a_campaign_moves_only_from_where_it_is")),
    *_of(
        "approve_campaign",
        ("and c.tenant_id = $2", "and $2::int is not null", "a_campaign_is_its_tenants"),
        ("and c.state = 'awaiting_approval'", "", "a_campaign_moves_only_from_where_it_is"),
        ("and c.started_by <> $3", "", "four_eyes_are_needed"),
    ),
    *_of(
        "abort_campaign",
        ("and c.tenant_id = $2", "and $2::int is not null", "a_campaign_is_its_tenants"),
        (
            "and c.state in ('awaiting_approval', 'awaiting_version', 'canary', 'ramp', 'stopped')",
            "",
            "a_campaign_moves_only_from_where_it_is",
        ),
        ("for update of c", "", "who_waited_for_a_campaign_judges_it_as_it_is"),
    ),
    *_of(
        "resume_campaign",
        ("and c.tenant_id = $2", "and $2::int is not null", "a_campaign_is_its_tenants"),
        ("and c.state = 'stopped'", "", "a_campaign_moves_only_from_where_it_is"),
        (_CAN_GO, "", "a_campaign_counts_what_stands_for_a_task"),
        (_NEWEST, "", "a_campaign_counts_what_stands_for_a_task"),
    ),
]

IDENTIFYING: Sequence[Mutant] = [
    *_of(
        "create_token",
        ("on conflict (tenant_id, name) where revoked_at is null do nothing", "", "a_name_stands_for_one_token"),
    ),
    *_of(
        "revoke_token",
        ("t.tenant_id = $1 and", "$1::int is not null and", "another_tenants_token_is_left_alone"),
        ("and t.revoked_at is null", "", "a_token_is_revoked_once"),
    ),
    *_of(
        "touch_token",
        (
            "and coalesce(t.last_used_at <= holdfast.instant() - interval '1 minute', true)",
            "",
            "a_use_is_written_once_a_minute",
        ),
    ),
    *_of("add_member", ("on conflict do nothing", "", "an_account_is_a_member_of_one_tenant")),
    *_of("remove_member", ("m.tenant_id = $1 and", "$1::int is not null and", "another_tenants_member_stays")),
]

DELIVERING: Sequence[Mutant] = [
    *_of(
        "add_webhook",
        ("on conflict (tenant_id, name) do nothing", "", "a_webhooks_name_is_taken_once"),
    ),
    *_of(
        "lock_webhook",
        ("w.tenant_id = $1 and", "$1::int is not null and", "webhooks_are_their_tenants"),
        ("for no key update of w", "", "what_a_change_of_a_webhook_saw_stays_so"),
    ),
    *_of("remove_webhook", ("w.tenant_id = $1 and", "$1::int is not null and", "webhooks_are_their_tenants")),
    *_of("rotate_webhook", ("w.tenant_id = $1 and", "$1::int is not null and", "webhooks_are_their_tenants")),
    *_of(
        "pause_webhook",
        ("w.tenant_id = $1 and", "$1::int is not null and", "webhooks_are_their_tenants"),
        ("and w.paused_at is null", "", "a_second_pause_keeps_the_first_reason"),
    ),
    *_of(
        "resume_webhook",
        ("w.tenant_id = $1 and", "$1::int is not null and", "webhooks_are_their_tenants"),
        ("and w.paused_at is not null", "", "only_a_paused_webhook_is_resumed"),
    ),
    *_of(
        "lease_webhooks",
        ("w.paused_at is null and", "", "a_paused_webhook_is_not_leased"),
        ("w.due_at <= holdfast.instant()", "true", "a_webhook_is_not_leased_before_its_time"),
        (
            "(w.lease_token is null or w.lease_expires_at <= holdfast.instant())",
            "true",
            "a_webhook_has_one_holder",
        ),
        ("for no key update skip locked", "", "whoever_leases_webhooks_waits_for_nobody"),
    ),
    *_of(
        "advance_webhook",
        ("and w.lease_token = $2", "and $2::uuid is not null", "only_the_holder_of_a_webhook_moves_it"),
        ("and w.lease_expires_at > holdfast.instant()", "", "a_holder_whose_time_is_over_moves_nothing"),
    ),
    *_of(
        "release_webhook",
        ("and w.lease_token = $2", "and $2::uuid is not null", "only_the_holder_of_a_webhook_moves_it"),
    ),
    *_of(
        "refuse_webhook",
        ("and w.lease_token = $2", "and $2::uuid is not null", "only_the_holder_of_a_webhook_moves_it"),
    ),
    *_of(
        "fail_webhook",
        ("and w.lease_token = $2", "and $2::uuid is not null", "only_the_holder_of_a_webhook_moves_it"),
        ("and w.lease_expires_at > holdfast.instant()", "", "a_holder_whose_time_is_over_moves_nothing"),
    ),
    *_of(
        "take_probes",
        ("w.state in ('active', 'draining') and", "", "a_worker_that_left_is_not_asked"),
        ("where p.due_at <= holdfast.instant()", "", "copies_that_see_the_same_turn_do_not_both_take_it"),
    ),
    _redundant(
        "take_probes",
        "and (x.worker_id is null or x.due_at <= holdfast.instant())",
        "",
        "the condition on the conflict decides; this one keeps the rest from being looked at and locked",
    ),
    *_of(
        "record_probe",
        ("and p.due_at = $2", "and $2::timestamptz is not null", "a_late_answer_of_a_worker_counts_nothing"),
    ),
]

HINTING: Sequence[Mutant] = [
    *_of(
        "take_hints",
        ("h.send_at <= holdfast.instant()", "true", "a_hint_is_not_sent_again_before_its_time"),
        ("t.state = 'q' and t.task_id", "t.task_id", "a_task_that_runs_needs_no_hint"),
        ("for update skip locked", "for update", "relays_do_not_wait_for_one_another"),
    ),
    *_of(
        "clear_hints",
        ("and t.state = 'q'", "", "hints_that_nobody_needs_are_forgotten_and_others_stay"),
        ("for update skip locked", "for update", "relays_do_not_wait_for_one_another"),
    ),
    *_of(
        "fill_hints",
        ("q.paused_at is null", "true", "a_paused_queue_gets_no_further_hints"),
        ("exists (select from holdfast.wake w where w.is_on)", "true", "no_hints_are_filled_in_while_they_are_off"),
        ("t.state = 'q' and t.lane_id", "t.lane_id", "hints_that_nobody_needs_are_forgotten_and_others_stay"),
        ("on conflict (task_id) do nothing", "", "two_relays_fill_in_a_hint_once"),
    ),
    *_of("tell_carrier_away", ("where w.is_on", "", "no_hints_are_filled_in_while_they_are_off")),
    *_of("tell_carrier_back", ("where w.is_on and", "where", "no_hints_are_filled_in_while_they_are_off")),
]

REQUESTING: Sequence[Mutant] = [
    *_of("take_request_key", ("on conflict do nothing", "", "a_key_is_taken_once")),
    *_of(
        "keep_answer",
        ("tenant_id = $1 and", "$1::int is not null and", "an_answer_is_kept_under_its_own_key"),
        ("key = $2 and", "$2::text is not null and", "an_answer_is_kept_under_its_own_key"),
        ("digest = $3 and", "$3::bytea is not null and", "an_answer_is_kept_under_its_own_key"),
        ("and answer is null", "", "an_answer_that_was_given_stays"),
    ),
]

SEPARATING: Sequence[Mutant] = [
    *_of(
        "lock_tenants",
        (
            "select pg_advisory_xact_lock(1752132969, n.tenant_id)",
            "select",
            "a_limited_tenant_starts_no_more_than_its_limit",
        ),
    ),
    *_of("create_tenant", ("on conflict (name) do nothing", "", "a_tenant_is_made_once")),
    *_of("lock_tenant", ("for no key update", "", "a_tenants_limits_are_changed_one_after_another")),
    *_of("limit_tenant", ("t.tenant_id = $1", "$1::int is not null", "a_limit_is_that_of_its_tenant")),
]

MUTANTS: Sequence[Mutant] = [
    *CLAIMING,
    *LAUNCHING,
    *LEASING,
    *SETTLING,
    *ASKING,
    *RUNNING,
    *KEEPING,
    *GUARDING,
    *AUTHORING,
    *SCHEDULING,
    *REMOTE,
    *ACTING,
    *WRITING,
    *RECOVERING,
    *CAMPAIGNING,
    *IDENTIFYING,
    *DELIVERING,
    *HINTING,
    *REQUESTING,
    *SEPARATING,
]

LIVE_SOUND = {
    "state not in ('q', 'v', 'r', 'w')": "the_schema_refuses_unknown_states",
    "(state in ('r', 'v')) <> (lease_token is not null)": "the_schema_refuses_a_lease_on_idle_work",
    "(state = 'r') <> (worker_id is not null)": "the_schema_refuses_running_work_without_a_worker",
    "(state = 'w') <> (due_at is not null)": "the_schema_refuses_waiting_without_an_end",
    "(is_retrying and state <> 'w')": "the_schema_refuses_a_retry_that_does_not_wait",
    "retries > max_retries": "the_schema_refuses_an_overdrawn_budget",
    "losses > max_losses": "the_schema_refuses_an_overdrawn_budget_of_losses",
    "(run_id is null) <> (node_no is null)": "the_schema_refuses_a_node_of_no_run",
}
"""What no live row may be: the conditions of the index that none may enter."""

CONSTRAINTS = {
    "breaker.breaker_trial": "the_schema_refuses_a_trial_of_a_closed_breaker",
    "breaker.breaker_passed": "the_schema_refuses_passed_trials_of_a_closed_breaker",
    "breaker.breaker_hand": "the_schema_refuses_a_breaker_open_for_ever_by_nobody",
    "quota.quota_scope": "the_schema_refuses_a_quota_of_two_things",
    "quota.quota_limit": "the_schema_refuses_a_quota_without_a_limit",
    "effect.effect_receipt": "the_schema_refuses_a_receipt_without_its_state",
    "effect.effect_answer": "the_schema_refuses_an_answer_without_its_time",
    "effect.effect_compensation": "the_schema_refuses_a_compensation_without_its_arguments",
    "failure.failure_check": "the_schema_refuses_a_retry_that_is_no_decision",
    "slot.slot_pkey": "the_schema_refuses_a_slot_twice",
    "slot.slot_fired": "the_schema_refuses_a_firing_of_nothing",
    "campaign.campaign_eyes": "four_eyes_are_needed_by_the_schema",
    "token.token_queues": "the_schema_refuses_queues_of_somebody_who_is_no_worker",
    "token.token_revoked": "the_schema_refuses_a_revocation_by_nobody",
    "member.member_which": "the_schema_refuses_a_member_who_is_everybody",
    "dead_letter.letter_sweep": "the_schema_refuses_to_sweep_what_nobody_asked_for",
    "webhook.webhook_lease": "the_schema_refuses_a_lease_without_its_end",
    "webhook.webhook_pause": "the_schema_refuses_a_holder_of_a_paused_webhook",
    "webhook.webhook_secrets": "the_schema_refuses_an_old_secret_for_ever",
    "dead_letter.letter_dispatched": "the_schema_refuses_a_retry_that_was_never_dispatched",
}
"""CHECK constraints of the hot path, and the check that fails without each."""
