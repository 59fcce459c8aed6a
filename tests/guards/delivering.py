"""The guards of webhooks and hints."""

from __future__ import annotations

from collections.abc import Sequence

from tests.guards.mutant import Mutant, killed, redundant

DELIVERING: Sequence[Mutant] = [
    *killed(
        "add_webhook",
        ("on conflict (tenant_id, name) do nothing", "", "a_webhooks_name_is_taken_once"),
    ),
    *killed(
        "lock_webhook",
        ("w.tenant_id = $1 and", "$1::int is not null and", "webhooks_are_their_tenants"),
        ("for no key update of w", "", "what_a_change_of_a_webhook_saw_stays_so"),
    ),
    *killed("remove_webhook", ("w.tenant_id = $1 and", "$1::int is not null and", "webhooks_are_their_tenants")),
    *killed("rotate_webhook", ("w.tenant_id = $1 and", "$1::int is not null and", "webhooks_are_their_tenants")),
    *killed(
        "pause_webhook",
        ("w.tenant_id = $1 and", "$1::int is not null and", "webhooks_are_their_tenants"),
        ("and w.paused_at is null", "", "a_second_pause_keeps_the_first_reason"),
    ),
    *killed(
        "resume_webhook",
        ("w.tenant_id = $1 and", "$1::int is not null and", "webhooks_are_their_tenants"),
        ("and w.paused_at is not null", "", "only_a_paused_webhook_is_resumed"),
    ),
    *killed(
        "lease_webhooks",
        ("w.paused_at is null and", "", "a_paused_webhook_is_not_leased"),
        ("w.due_at <= holdfast.instant()", "true", "a_webhook_is_not_leased_before_its_time"),
        (
            "(w.lease_token is null or w.lease_expires_at <= holdfast.instant())",
            "true",
            "a_webhook_has_one_holder",
        ),
        (
            "($7::boolean or w.url like 'reporter:%')",
            "$7::boolean is not null",
            "who_cannot_ask_urls_leases_reporters_alone",
        ),
        ("for no key update skip locked", "", "whoever_leases_webhooks_waits_for_nobody"),
    ),
    *killed(
        "advance_webhook",
        ("and w.lease_token = $2", "and $2::uuid is not null", "only_the_holder_of_a_webhook_moves_it"),
        ("and w.lease_expires_at > holdfast.instant()", "", "a_holder_whose_time_is_over_moves_nothing"),
    ),
    *killed(
        "release_webhook",
        ("and w.lease_token = $2", "and $2::uuid is not null", "only_the_holder_of_a_webhook_moves_it"),
    ),
    *killed(
        "refuse_webhook",
        ("and w.lease_token = $2", "and $2::uuid is not null", "only_the_holder_of_a_webhook_moves_it"),
    ),
    *killed(
        "fail_webhook",
        ("and w.lease_token = $2", "and $2::uuid is not null", "only_the_holder_of_a_webhook_moves_it"),
        ("and w.lease_expires_at > holdfast.instant()", "", "a_holder_whose_time_is_over_moves_nothing"),
    ),
    *killed(
        "take_probes",
        ("w.state in ('active', 'draining') and", "", "a_worker_that_left_is_not_asked"),
        ("where p.due_at <= holdfast.instant()", "", "copies_that_see_the_same_turn_do_not_both_take_it"),
    ),
    redundant(
        "take_probes",
        "and (x.worker_id is null or x.due_at <= holdfast.instant())",
        "",
        "the condition on the conflict decides; this one keeps the rest from being looked at and locked",
    ),
    *killed(
        "record_probe",
        ("and p.due_at = $2", "and $2::timestamptz is not null", "a_late_answer_of_a_worker_counts_nothing"),
    ),
]

HINTING: Sequence[Mutant] = [
    *killed(
        "take_hints",
        ("h.send_at <= holdfast.instant()", "true", "a_hint_is_not_sent_again_before_its_time"),
        ("t.state = 'q'", "true", "a_task_that_runs_needs_no_hint"),
        ("for update skip locked", "for update", "relays_do_not_wait_for_one_another"),
    ),
    *killed(
        "clear_hints",
        ("and t.state = 'q'", "", "hints_that_nobody_needs_are_forgotten_and_others_stay"),
        ("for update skip locked", "for update", "relays_do_not_wait_for_one_another"),
    ),
    *killed(
        "fill_hints",
        ("q.paused_at is null", "true", "a_paused_queue_gets_no_further_hints"),
        ("exists (select from holdfast.wake w where w.is_on)", "true", "no_hints_are_filled_in_while_they_are_off"),
        ("t.state = 'q' and t.lane_id", "t.lane_id", "hints_that_nobody_needs_are_forgotten_and_others_stay"),
        ("on conflict (task_id) do nothing", "", "two_relays_fill_in_a_hint_once"),
    ),
    *killed("record_carrier_outage", ("where w.is_on", "", "no_hints_are_filled_in_while_they_are_off")),
    *killed("record_carrier_recovery", ("where w.is_on and", "where", "no_hints_are_filled_in_while_they_are_off")),
]
