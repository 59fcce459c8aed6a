"""The guards of breakers, quotas and what actions are allowed to do."""

from __future__ import annotations

from collections.abc import Sequence

from tests.guards.mutant import Mutant, killed, redundant

GUARDING: Sequence[Mutant] = [
    *killed(
        "claim",
        (
            "b.state = 'c' or (b.state = 'h' and b.breaker_id = any($7::bigint[]))",
            "$7::bigint[] is not null",
            "a_breaker_opened_since_the_plan_gives_nothing",
        ),
        (
            "b.state = 'h' and b.breaker_id = any($7::bigint[])",
            "b.state = 'h' and $7::bigint[] is not null",
            "a_lane_on_trial_gives_nothing_unless_granted",
        ),
    ),
    *killed(
        "claim_task",
        ("l.lane_id = t.lane_id and b.state <> 'c'", "l.lane_id = t.lane_id", "a_closed_breaker_holds_nothing_back"),
        ("b.breaker_id <> $4", "$4::int is null", "no_more_named_trials_than_granted"),
    ),
    *killed(
        "reserve",
        ("l.lane_id = t.lane_id and b.state <> 'c'", "l.lane_id = t.lane_id", "a_closed_breaker_holds_nothing_back"),
        ("b.breaker_id <> $3", "$3::int is null", "no_more_named_trials_than_granted"),
    ),
    redundant("claim_task", "b.state = 'o' or", "false or", "an open breaker grants no trial, so $4 never names it"),
    redundant("reserve", "b.state = 'o' or", "false or", "an open breaker grants no trial, so $3 never names it"),
    *killed(
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
    *killed(
        "open_breaker",
        (
            'b.state = $2::text::"char" and b.since = $3',
            "$2::text is not null and $3::timestamptz is not null",
            "workers_that_see_the_same_failures_open_it_once",
        ),
    ),
    *killed(
        "pass_trials",
        (
            "b.state = 'h' and b.since = $2",
            "$2::timestamptz is not null",
            "a_trial_that_waited_passes_nothing_reopened",
        ),
    ),
    redundant(
        "close_breaker",
        "b.state = 'h' and b.since = $2",
        "$2::timestamptz is not null",
        "pass_trials holds the row in the same transaction",
    ),
    *killed(
        "try_trials",
        (
            "where pg_try_advisory_xact_lock(1752132968, (b.breaker_id % 2147483648)::int)",
            "",
            "claimers_at_once_start_no_more_trials_than_granted",
        ),
    ),
    *killed(
        "begin_trials",
        (
            "b.trial_at <= holdfast.instant()",
            "b.trial_at is not null",
            "a_named_task_of_an_open_breaker_is_not_started",
        ),
        ("for update of b skip locked", "for update of b", "claimers_do_not_wait_for_a_breaker_that_is_moving"),
    ),
    redundant("begin_trials", "b.state = 'o' and", "", "breaker_trial: only an open breaker has a time to be tried"),
    *killed("declare_breaker", ("b.tenant_id = $1 and", "", "a_breaker_of_another_tenant_is_no_breaker_here")),
    redundant("declare_action", "a.tenant_id = $1 and", "", "a policy is of one tenant: no other declares the same"),
    *killed("delete_breaker", ("b.tenant_id = $1 and", "$1::int is not null and", "guards_belong_to_their_tenant")),
    *killed("set_breaker_state", ("b.tenant_id = $1 and", "$1::int is not null and", "guards_belong_to_their_tenant")),
    *killed("set_breaker_state", ("for update of b", "", "what_a_guard_was_before_is_what_the_change_replaced")),
    *killed(
        "declare_quota",
        ("q.tenant_id = $1 and", "", "guards_belong_to_their_tenant"),
        ("k.tenant_id = $1 and", "", "guards_belong_to_their_tenant"),
        ("for update of k", "", "what_a_guard_was_before_is_what_the_change_replaced"),
    ),
    *killed(
        "lock_quota_parts",
        ("pg_advisory_xact_lock(1752132970, $1)", "$1::int", "parts_of_a_quota_changed_at_once_are_both_kept"),
    ),
    *killed("delete_quota", ("k.tenant_id = $1 and", "", "guards_belong_to_their_tenant")),
    redundant(
        "delete_quota", "q.tenant_id = $1 and", "", "a quota of this tenant names a queue of this tenant: a foreign key"
    ),
    *killed(
        "hasten_retries",
        ("f.task_id = t.task_id and f.attempt = t.attempt", "f.task_id = t.task_id", "a_backoff_is_never_cut_short"),
        ("l.tenant_id = $1 and", "$1::int is not null and", "guards_belong_to_their_tenant"),
        ("for update of t skip locked", "", "hastening_does_not_wait_for_a_locked_task"),
    ),
    redundant("hasten_retries", "t.state = 'w' and", "", "live_invalid_rows: only a waiting row waits for a retry"),
    redundant(
        "hasten_retries", "q.tenant_id = $1 and q.name", "q.name", "the lane beside it is of this tenant already"
    ),
    *killed("lock_quotas", ("for update of k", "", "reconcilers_at_once_let_no_more_go_than_one")),
    *killed(
        "promote",
        (
            "and exists (select from holdfast.quota k where holdfast.quota_covers(k, l))",
            "and false",
            "a_window_has_no_more_retries_than_allowed",
        ),
    ),
    *killed(
        "settle_incomplete",
        (
            "join holdfast.quota k on holdfast.quota_covers(k, l)",
            "join holdfast.quota k on false",
            "a_retry_without_delay_does_not_escape_a_quota",
        ),
        ("fenced.outcome <> 'e' and exists", "exists", "a_released_task_waits_for_no_quota"),
    ),
    redundant(
        "admit_retries",
        "t.state = 'w' and t.due_at <= holdfast.instant()",
        "true",
        "promote locked the rows in the same transaction",
    ),
    redundant(
        "postpone_retries",
        "t.state = 'w' and t.is_retrying and t.due_at <= holdfast.instant()",
        "true",
        "promote locked the rows in the same transaction",
    ),
]

AUTHORING: Sequence[Mutant] = [
    *killed("claim_run_key", ("on conflict (tenant_id, key) do nothing", "", "a_key_stands_for_one_run")),
]
