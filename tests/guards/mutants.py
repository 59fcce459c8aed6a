"""Every guard of every statement that changes something, and what is left of the statement without it.

A mutant takes one guard away and keeps the statement valid. `killed_by` names the check that must then fail. A guard
that nothing can notice because another one covers it says so in `redundant_because`; those stay few.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.guards.acting import ACTING
from tests.guards.campaigning import CAMPAIGNING
from tests.guards.claiming import CLAIMING, LAUNCHING
from tests.guards.delivering import DELIVERING, HINTING
from tests.guards.guarding import AUTHORING, GUARDING
from tests.guards.identifying import IDENTIFYING, REQUESTING, SEPARATING
from tests.guards.mutant import Mutant
from tests.guards.mutant import killed as _of
from tests.guards.mutant import redundant as _redundant
from tests.guards.recovering import RECOVERING
from tests.guards.remote import REMOTE
from tests.guards.running import RUNNING
from tests.guards.scheduling import SCHEDULING
from tests.guards.writing import WRITING

_BUSY = "only_a_lease_that_is_held_is_busy"
_BELIEVED = "a_clock_that_is_not_believed_ends_nothing"
_DRAINS_ON = "a_drained_worker_that_was_silent_drains_on"

LEASING: Sequence[Mutant] = [
    *_of(
        "heartbeat",
        ("and given.lease_token = locked.lease_token", "", "a_stale_token_renews_nothing"),
        ("locked.state = 'r'", "true", "a_reservation_is_not_kept_alive_by_beats"),
        ("locked.lease_expires_at > holdfast.instant()", "true", "an_expired_lease_is_never_revived"),
        ("for no key update of t skip locked", "", "a_beat_waits_for_nobody_and_does_not_renew_the_next_lease"),
        ("and given.lease_token = busy.lease_token", "", _BUSY),
        ("and busy.state = 'r'", "", _BUSY),
        ("and busy.lease_expires_at > holdfast.instant()", "", _BUSY),
    ),
    *_of(
        "renew_ended",
        ("and given.lease_token = locked.lease_token", "", "an_ended_attempt_keeps_its_own_lease_alone"),
        ("locked.state = 'r'", "true", "what_is_kept_until_it_is_settled_runs"),
        ("locked.lease_expires_at > holdfast.instant()", "true", "an_expired_lease_is_not_kept_to_be_settled"),
        ("for no key update of t skip locked", "", "no_beat_waits_for_what_is_being_settled"),
    ),
    *_of(
        "expired",
        ("t.lease_expires_at <= holdfast.instant()", "true", "a_valid_lease_is_not_reaped"),
        ("or ($5 and t.cancel_at <= holdfast.instant())", "", "a_cancel_past_its_grace_is_forced"),
        ("($5 and t.lease_expires_at", "($5::boolean is not null and t.lease_expires_at", _BELIEVED),
        ("($5 and t.cancel_at", "($5::boolean is not null and t.cancel_at", _BELIEVED),
        ("($5 and t.state", "($5::boolean is not null and t.state", _BELIEVED),
        ("and (t.run_id is not null) = $4", "and $4::boolean is not null", "nodes_are_reaped_apart_from_other_tasks"),
        ("w.state = 'gone'", "true", "a_valid_lease_is_not_reaped"),
        ("t.worker_id in (select", "false and t.worker_id in (select", "work_of_a_buried_worker_is_reaped_at_once"),
        ("t.state = 'r' and", "", "the_time_limit_does_not_count_before_anybody_attached"),
        ("secs => $3 +", "secs => $3 * 0 +", "a_time_limit_that_nobody_keeps_is_kept_here"),
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
    _redundant("promote", "state = 'w' and due_at", "due_at", "live_invalid_rows: only a waiting row has a due time"),
]

SETTLING: Sequence[Mutant] = [
    *_of("lock_tasks", ("for update of t", "", "a_mixed_batch_and_a_cancel_do_not_lock_each_other_out")),
    *_of(
        "settle_completed",
        ("and given.attempt = locked.attempt", "", "a_report_must_name_the_current_attempt"),
        ("and given.lease_token = locked.lease_token", "", "a_report_must_carry_the_current_token"),
        ("locked.state = 'r'", "true", "a_reservation_cannot_be_completed"),
        ("for update of t", "", "a_completion_that_waited_cannot_end_the_next_attempt"),
    ),
    *_of(
        "settle_incomplete",
        ("and given.attempt = locked.attempt", "", "a_report_must_name_the_current_attempt"),
        ("and given.lease_token = locked.lease_token", "", "a_report_must_carry_the_current_token"),
        ("for update of t", "", "a_failure_that_waited_cannot_end_the_next_attempt"),
        ("locked.cancel_at is not null", "false", "a_requested_cancel_wins_over_a_retry"),
    ),
    _redundant(
        "settle_incomplete",
        "locked.state in ('r', 'v')",
        "true",
        "live_invalid_rows: a row without a lease has no token to match",
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
        ("locked where state <> 'r'", "locked", "a_running_task_is_asked_and_a_queued_one_ends"),
        ("where state = 'v'", "where true", "a_reservation_that_is_canceled_leaves_its_attempt"),
    ),
    _redundant(
        "cancel",
        "locked where state = 'r'",
        "locked",
        "a row the statement deletes cannot be changed by it as well; which of the two wins would be a matter of luck",
    ),
    *_of(
        "retry_now",
        ("and t.tenant_id = $2", "and $2::int is not null", "another_tenant_cannot_retry"),
        ("and t.is_retrying", "", "only_a_failed_task_is_retried"),
    ),
    _redundant("retry_now", "and t.state = 'w'", "", "live_invalid_rows: only a waiting row waits for a retry"),
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
        ("and (q.paused_at is null or $4 not in ('', q.paused_reason))", "", "a_second_pause_keeps_the_first"),
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
    ),
    _redundant("lock_queue", "for no key update of q", "", "the queue is made sure of first, which waits for its row"),
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
    *_of("old_blocks", ("n.began_at < promised.at", "promised.at is not null", "young_history_is_kept")),
    *_of(
        "delete_old_events",
        (
            "where e.at < holdfast.instant() - make_interval(secs => $1::double precision * 86400)",
            "where $1::double precision > 0",
            "young_history_is_kept",
        ),
        (
            "and e.at < holdfast.instant() - make_interval(secs => $1::double precision * 86400)",
            "",
            "young_events_behind_old_ones_are_kept",
        ),
    ),
    *_of(
        "delete_old_workers",
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
        (
            "and not exists (select from holdfast.failure f where f.worker_id = w.worker_id)",
            "",
            "workers_that_a_failure_names_are_not_forgotten",
        ),
    ),
    _redundant(
        "delete_old_workers",
        "w.state in ('gone', 'lost')",
        "true",
        "only workers that left have an end (verified invariant)",
    ),
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

LIVE_INVALID_ROWS = {
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

_STANDS = "a_campaign_counts_what_stands_for_a_task"

REDRIVABLE_DEAD_LETTERS = {
    "d.state in ('open', 'ignored')": _STANDS,
    "'retry' = any(d.recovery_options)": _STANDS,
    "(d.state = 'open' or holdfast.is_failed_at_rest(d.task_id, d.run_id, d.node_no))": _STANDS,
    (
        "(d.run_id is null or exists (select from holdfast.run r where r.run_id = d.run_id and r.canceled_at is null"
        " offset 0))"
    ): "a_canceled_runs_letter_does_not_go",
    "d.dead_letter_id = (select max(n.dead_letter_id) from holdfast.dead_letter n where n.task_id = d.task_id)": (
        _STANDS
    ),
}
"""Which letters could go again: the conditions of the view."""

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
    "campaign.campaign_second_person": "four_eyes_are_needed_by_the_schema",
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
