"""The guards of schedules and their slots."""

from __future__ import annotations

from collections.abc import Sequence

from tests.guards.mutant import Mutant, killed, redundant

SCHEDULING: Sequence[Mutant] = [
    *killed(
        "create_schedule",
        ("on conflict (tenant_id, name) do nothing", "", "a_name_stands_for_one_schedule"),
    ),
    *killed(
        "change_schedule",
        ("s.tenant_id = $1", "$1::int is not null", "another_tenants_schedule_is_left_alone"),
        ("and s.origin = $3", "and $3::text is not null", "only_its_keeper_changes_a_schedule"),
    ),
    *killed(
        "take_schedule",
        ("and s.revision = $2", "and $2::int is not null", "nothing_fires_by_rules_that_changed_meanwhile"),
        ("for no key update of s skip locked", "", "schedulers_do_not_wait_for_one_another"),
    ),
    *killed(
        "hold_schedule",
        ("and s.revision = $2", "and $2::int is not null", "nothing_fires_by_rules_that_changed_meanwhile"),
        ("for no key update of s", "", "a_hand_and_a_scheduler_see_each_other"),
    ),
    *killed(
        "close_firings",
        ("and f.state = 'f'", "", "what_waits_goes_when_the_way_is_free"),
        (
            "and not exists (select from holdfast.live t where t.task_id = f.task_id)",
            "",
            "a_firing_that_runs_holds_back_the_next",
        ),
        ("and r.state = 'o'", "", "a_run_that_is_over_is_out_of_the_way"),
    ),
    *killed("release_slot", ("and f.state = 'w'", "", "a_slot_that_fired_does_not_wait_any_more")),
    *killed("drop_slots", ("and f.state = 'w'", "", "a_slot_that_fired_does_not_wait_any_more")),
    redundant(
        "advance_schedule",
        "and s.next_at is not distinct from $2",
        "and ($2::timestamptz is null or true)",
        "only who holds the lock of take_schedule moves a schedule on",
    ),
    *killed(
        "void_slots",
        ("and f.slot_at > holdfast.instant()", "", "a_clock_that_goes_back_leaves_what_came_before"),
        ("and f.state in ('k', 'm')", "", "a_clock_that_goes_back_undoes_no_firing"),
    ),
    *killed(
        "record_schedule_error",
        ("and s.revision = $2", "and $2::int is not null", "nothing_fires_by_rules_that_changed_meanwhile"),
    ),
    *killed(
        "pause_schedule",
        ("s.tenant_id = $1 and", "", "another_tenants_schedule_is_left_alone"),
        ("and s.paused_at is null", "", "a_second_pause_of_a_schedule_keeps_the_first"),
    ),
    *killed(
        "resume_schedule",
        ("s.tenant_id = $1 and", "", "another_tenants_schedule_is_left_alone"),
        ("and s.paused_at is not null", "", "a_second_pause_of_a_schedule_keeps_the_first"),
    ),
    *killed("delete_schedule", ("s.tenant_id = $1 and", "", "another_tenants_schedule_is_left_alone")),
    *killed("delete_old_slots", ("and (f.is_over or f.state in ('k', 'm'))", "", "slots_in_use_are_not_forgotten")),
]
