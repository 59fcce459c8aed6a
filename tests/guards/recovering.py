"""The guards of dead letters."""

from __future__ import annotations

from collections.abc import Sequence

from tests.guards.mutant import Mutant, killed, redundant

_LOCKED_ANYWAY = "the update locks the same rows; the order keeps two of them from waiting for each other in a circle"
_JUDGED_AGAIN = "`core.dead.judge` looks at the state of the locked letter, and what it requeues has a guard of its own"
_ASKED_FOR = "('retry_requested', 'retrying')"
_ASKED = f"d.state in {_ASKED_FOR}"
_BY_KEY = "and d.state || '' in {}"
_PAUSED_RUN = "a_paused_run_is_left_by_who_asks_for_none_in_particular"

RECOVERING: Sequence[Mutant] = [
    *killed(
        "update_dead_letters_after_settle",
        ("d.state in ('open', 'retry_requested', 'retrying', 'ignored')", "true", "what_is_resolved_stays_so"),
        ("d.state = 'retrying' and not d.wants_sweep", "true", "only_a_letter_that_retried_is_roused"),
    ),
    redundant("update_dead_letters_after_settle", "for update of d", "", _LOCKED_ANYWAY),
    *killed(
        "requeue_stale_dead_letters",
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
    *killed(
        "park_abandoned_dead_letters",
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
    *killed(
        "lock_dead_letters",
        ("and d.campaign_id is null", "", "a_campaigns_letters_are_its_own"),
        ("for update of d skip locked", "", "sweeps_do_not_wait_for_one_another"),
    ),
    redundant("lock_dead_letters", f"{_ASKED} and d.wants_sweep", "true", _JUDGED_AGAIN),
    *killed(
        "lock_run_dead_letters",
        ("and d.campaign_id is null", "", "a_campaigns_letters_are_its_own"),
        ("and d.tenant_id = $2", "and $2::int is not null", "another_tenants_letters_are_left_alone"),
    ),
    redundant("lock_run_dead_letters", f"{_ASKED} and d.wants_sweep", "true", _JUDGED_AGAIN),
    redundant(
        "lock_run_dead_letters", "for update of d", "", "the run's lock lets one sweep at a time judge and requeue it"
    ),
    *killed("resolve_superseded", (f"and {_ASKED}", "", "a_letter_leaves_only_the_states_it_may")),
    *killed(
        "supersede_dead_letters",
        (
            _BY_KEY.format("('open', 'retry_requested', 'retrying', 'ignored')"),
            "",
            "a_letter_leaves_only_the_states_it_may",
        ),
    ),
    *killed("exhaust_dead_letters", (f"and {_ASKED}", "", "a_letter_leaves_only_the_states_it_may")),
    *killed("mark_dispatched", (_BY_KEY.format(_ASKED_FOR), "", "a_letter_leaves_only_the_states_it_may")),
    *killed(
        "request_and_dispatch_dead_letters",
        (_BY_KEY.format("('open', 'ignored')"), "", "a_letter_leaves_only_the_states_it_may"),
        ("and 'retry' = any(d.recovery_options)", "", "a_letter_without_the_option_is_not_retried"),
    ),
    *killed(
        "request_dead_letter_retries",
        (_BY_KEY.format("('open', 'ignored')"), "", "a_letter_leaves_only_the_states_it_may"),
        ("and 'retry' = any(d.recovery_options)", "", "a_letter_without_the_option_is_not_retried"),
        ("for update of d", "", "who_waited_for_a_letter_judges_it_as_it_is"),
    ),
    *killed(
        "ignore_dead_letters",
        ("and d.tenant_id = $5", "and $5::int is not null", "another_tenants_letters_are_left_alone"),
        ("d.state in ('open', 'retry_requested', 'retrying')", "true", "a_letter_leaves_only_the_states_it_may"),
        ("and d.state = 'ignored'", "", "a_letter_leaves_only_the_states_it_may"),
        ("$4 = 'abandoned' and", "", "what_is_ignored_can_only_be_abandoned"),
        ("and d.disposition <> 'abandoned'", "", "what_is_ignored_can_only_be_abandoned"),
        ("for update of d", "", "who_waited_for_a_letter_judges_it_as_it_is"),
    ),
    *killed(
        "resolve_dead_letters",
        ("and d.tenant_id = $4", "and $4::int is not null", "another_tenants_letters_are_left_alone"),
        ("and d.state in ('open', 'retry_requested', 'retrying')", "", "a_letter_leaves_only_the_states_it_may"),
        ("for update of d", "", "who_waited_for_a_letter_judges_it_as_it_is"),
    ),
    *killed(
        "lock_dead_letters_of_runs",
        ("and d.tenant_id = $2", "and $2::int is not null", "another_tenants_letters_are_left_alone"),
        ("and d.state <> 'resolved'", "", "what_is_resolved_stays_so"),
        ("for update of d", "", "a_retry_of_a_run_waits_for_who_judges_its_letters"),
    ),
    redundant(
        "lock_dead_letters_of_runs",
        "and a.state <> 'resolved'",
        "",
        "the locked letter is asked; it names the index of runs",
    ),
    *killed(
        "lock_dead_letters_of_task",
        ("and d.tenant_id = $2", "and $2::int is not null", "another_tenants_letters_are_left_alone"),
        ("and d.state <> 'resolved'", "", "what_is_resolved_stays_so"),
    ),
    redundant("lock_dead_letters_of_task", "for update of d", "", "the end of the task can be taken away only once"),
    *killed(
        "revive_tasks",
        ("where e.tenant_id = $2", "where $2::int is not null", "only_a_failed_task_of_the_tenant_is_revived"),
        ("and e.state = 'f'", "", "only_a_failed_task_of_the_tenant_is_revived"),
        ("and e.run_id is null", "", "a_node_is_not_revived_without_its_run"),
    ),
    redundant("revive_tasks", "for update of e", "", _LOCKED_ANYWAY),
    *killed(
        "take_dead_letter",
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
        ("r.canceled_at is not null or", "", "a_canceled_runs_letter_does_not_go"),
        ("for update of o skip locked", "", "reinjecting_does_not_wait_for_another"),
    ),
    *killed(
        "lock_families",
        ("r.tenant_id = $2 and", "$2::int is not null and", "a_deletion_holds_a_run_and_the_one_that_started_it"),
        ("for no key update of r", "", "a_deletion_holds_a_run_and_the_one_that_started_it"),
    ),
    *killed(
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
    *killed("return_dead_letter", ("and d.state = 'open'", "", "a_letter_leaves_only_the_states_it_may")),
    *killed(
        "lease_dead_task",
        ("where l.expires_at <= holdfast.instant() or l.holder = excluded.holder", "", "a_lease_has_one_holder"),
    ),
    *killed("release_dead_task", ("and l.holder = $2", "and $2::text is not null", "a_lease_has_one_holder")),
    *killed(
        "delete_old_dead_letters",
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
