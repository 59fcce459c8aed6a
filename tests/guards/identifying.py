"""The guards of tokens and members, of keys of requests, and of tenants."""

from __future__ import annotations

from collections.abc import Sequence

from tests.guards.mutant import Mutant, killed

IDENTIFYING: Sequence[Mutant] = [
    *killed(
        "create_token",
        ("on conflict (tenant_id, name) where revoked_at is null do nothing", "", "a_name_stands_for_one_token"),
    ),
    *killed(
        "revoke_token",
        ("t.tenant_id = $1 and", "$1::int is not null and", "another_tenants_token_is_left_alone"),
        ("and t.revoked_at is null", "", "a_token_is_revoked_once"),
    ),
    *killed(
        "touch_token",
        (
            "and coalesce(t.last_used_at <= holdfast.instant() - interval '1 minute', true)",
            "",
            "a_use_is_written_once_a_minute",
        ),
    ),
    *killed("add_member", ("on conflict do nothing", "", "an_account_is_a_member_of_one_tenant")),
    *killed("remove_member", ("m.tenant_id = $1 and", "$1::int is not null and", "another_tenants_member_stays")),
]

REQUESTING: Sequence[Mutant] = [
    *killed("take_request_key", ("on conflict do nothing", "", "a_key_is_taken_once")),
    *killed(
        "store_response",
        ("tenant_id = $1 and", "$1::int is not null and", "an_answer_is_kept_under_its_own_key"),
        ("key = $2 and", "$2::text is not null and", "an_answer_is_kept_under_its_own_key"),
        ("digest = $3 and", "$3::bytea is not null and", "an_answer_is_kept_under_its_own_key"),
        ("and answer is null", "", "an_answer_that_was_given_stays"),
    ),
]

SEPARATING: Sequence[Mutant] = [
    *killed(
        "try_tenants",
        (
            "where pg_try_advisory_xact_lock(1752132969, n.tenant_id)",
            "",
            "a_limited_tenant_starts_no_more_than_its_limit",
        ),
    ),
    *killed(
        "lock_tenant_limit",
        (
            "select pg_advisory_xact_lock(1752132969, $1)",
            "select $1::int",
            "a_named_task_of_a_limited_tenant_waits_for_other_counts",
        ),
    ),
    *killed("create_tenant", ("on conflict (name) do nothing", "", "a_tenant_is_made_once")),
    *killed("lock_tenant", ("for no key update", "", "a_tenants_limits_are_changed_one_after_another")),
    *killed("limit_tenant", ("t.tenant_id = $1", "$1::int is not null", "a_limit_is_that_of_its_tenant")),
]
