"""The guards of effects and steps."""

from __future__ import annotations

from collections.abc import Sequence

from tests.guards.mutant import Mutant, killed, redundant

_AUTHORITY = "an_action_needs_authority_where_an_effect_is_governed"
_UNDER_WAY = "an_effect_under_way_is_not_sent_by_another"

ACTING: Sequence[Mutant] = [
    *killed(
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
        ("and f.attempt >= e.attempt", "", "a_refusal_stands_until_an_operator_retries"),
        ("and f.decision = 'stop'", "", "a_refusal_stands_until_an_operator_retries"),
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
    *killed(
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
    redundant(
        "answer_effect",
        "select e.task_id from holdfast.effect e where e.tenant_id = $4 and e.key = $5",
        "select max(e.task_id) from holdfast.effect e where e.key = $5",
        "it chooses between two refusals: whether it helps to ask again",
    ),
    *killed(
        "store_step",
        ("t.attempt = $2", "$2::int is not null", "a_step_needs_the_current_lease"),
        ("t.lease_token = $3", "$3::uuid is not null", "a_step_needs_the_current_lease"),
        ("t.tenant_id = $4 and t.state", "$4::int is not null and t.state", "a_step_needs_the_current_lease"),
        ("and t.state = 'r'", "", "a_reservation_keeps_no_step"),
        ("for key share of t", "", "a_step_that_waited_is_not_kept_for_the_lease_before"),
        ("on conflict (task_id, generation, name, digest) do nothing", "", "a_step_is_kept_once"),
    ),
    *killed("set_authority", ("where a.is_allowed <> excluded.is_allowed", "", "a_ruling_replaces_the_one_before")),
    *killed(
        "lock_compensation",
        ("e.tenant_id = $1 and", "$1::int is not null and", "another_tenants_effect_is_not_marked_as_undone"),
        ("for update of e", "", "one_caller_at_a_time_undoes_an_effect"),
    ),
    *killed(
        "record_compensation",
        ("e.tenant_id = $1 and", "$1::int is not null and", "another_tenants_effect_is_not_marked_as_undone"),
        ("and e.compensated_by is null", "", "an_effect_is_undone_once"),
    ),
]
