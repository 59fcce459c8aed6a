"""The guards of campaigns."""

from __future__ import annotations

from collections.abc import Sequence

from tests.guards.mutant import Mutant, killed, redundant

_PAUSED_RUN = "a_paused_run_is_left_by_who_asks_for_none_in_particular"
CAMPAIGNING: Sequence[Mutant] = [
    *killed(
        "start_campaign",
        ("d.tenant_id = $1 and", "$1::int is not null and", "a_campaign_is_its_tenants"),
        ("holdfast.redrivable_dead_letters d", "holdfast.dead_letter d", "a_campaign_counts_what_stands_for_a_task"),
        ("where counted.total > 0", "", "a_campaign_over_nothing_does_not_begin"),
        (
            "on conflict (tenant_id, fingerprint) where state not in ('completed', 'aborted') do nothing",
            "",
            "one_campaign_at_a_time_works_on_a_group",
        ),
    ),
    *killed(
        "take_campaign_turn",
        ("where t.rests_until <= holdfast.instant()", "", "one_at_a_time_moves_campaigns"),
    ),
    *killed(
        "end_campaign_turn",
        ("where t.rests_until = $1", "where $1::timestamptz is not null", "one_at_a_time_moves_campaigns"),
    ),
    *killed(
        "lock_campaign",
        (
            "and (c.rests_until is null or c.rests_until <= holdfast.instant())",
            "",
            "a_campaign_that_rests_is_left_alone",
        ),
        ("for update of c skip locked", "", "campaigns_do_not_wait_for_one_another"),
    ),
    redundant(
        "collect_campaign",
        "and d.state = 'retrying'\n",
        "\n",
        "only letters that this statement saw retrying come here; it stands against a change in that very moment",
    ),
    *killed(
        "take_campaign_dead_letters",
        ("g.tenant_id = $1 and", "$1::int is not null and", "a_campaign_is_its_tenants"),
        ("holdfast.redrivable_dead_letters g", "holdfast.dead_letter g", "a_campaign_takes_only_what_is_its_to_take"),
        ("and g.dead_letter_id <= $3", "and $3::bigint is not null", "a_campaign_takes_only_what_is_its_to_take"),
        ("for update of d skip locked", "", "campaigns_do_not_wait_for_one_another"),
    ),
    redundant(
        "take_campaign_dead_letters",
        "d.state in ('open', 'ignored') and",
        "",
        "only letters that this statement saw so come here; it stands against a change in that very moment",
    ),
    *killed(
        "next_campaign_dead_letters",
        ("and q.paused_at is not null", "and false", "a_paused_queue_gets_nothing_of_a_campaign"),
        ("r.state = 'o' and r.paused_at is not null", "false", _PAUSED_RUN),
    ),
    *killed(
        "move_campaign", ("and c.state = $2", "and $2::text is not null", "a_campaign_moves_only_from_where_it_is")
    ),
    *killed(
        "approve_campaign",
        ("and c.tenant_id = $2", "and $2::int is not null", "a_campaign_is_its_tenants"),
        ("and c.state = 'awaiting_approval'", "", "a_campaign_moves_only_from_where_it_is"),
        (
            "and not holdfast.is_same_person(c.tenant_id, coalesce(c.resumed_by, c.started_by), $3)",
            "",
            "four_eyes_are_needed",
        ),
    ),
    *killed(
        "abort_campaign",
        ("and c.tenant_id = $2", "and $2::int is not null", "a_campaign_is_its_tenants"),
        (
            "and c.state in ('awaiting_approval', 'awaiting_version', 'canary', 'ramp', 'stopped')",
            "",
            "a_campaign_moves_only_from_where_it_is",
        ),
        ("for update of c", "", "who_waited_for_a_campaign_judges_it_as_it_is"),
    ),
    *killed(
        "resume_campaign",
        ("and c.tenant_id = $2", "and $2::int is not null", "a_campaign_is_its_tenants"),
        ("and c.state = 'stopped'", "", "a_campaign_moves_only_from_where_it_is"),
        ("holdfast.redrivable_dead_letters d", "holdfast.dead_letter d", "a_campaign_counts_what_stands_for_a_task"),
    ),
]
