"""The guards inside functions of the schema, taken away in the database of the check."""

from __future__ import annotations

from collections.abc import Sequence

from tests.guards.mutant import Mutant, killed

_ONE = "a_key_stands_for_one_task_in_sql"
_AGAIN = "two_who_intern_the_same_names_in_sql_both_enqueue"
_WITHIN = "sql_enqueues_within_its_tenant"
_FREE = "who_took_a_span_or_failed_to_keeps_nobody_waiting"

FUNCTIONS: Sequence[Mutant] = [
    *killed(
        "assert_lease",
        (
            "and t.lease_token = assert_lease.lease_token",
            "",
            "a_lease_asserted_in_a_transaction_stays_until_it_ends",
        ),
        ("and t.state = 'r'", "", "a_reservation_is_no_lease_to_assert"),
        ("for key share of t", "", "a_lease_asserted_in_a_transaction_stays_until_it_ends"),
    ),
    *killed(
        "enqueue",
        ("on conflict do nothing\n      returning", "returning", _ONE),
        ("if known.digest <> digest then", "if false then", _ONE),
        ("elsif known.task_id is not null then", "else", "a_key_that_is_gone_is_never_answered_with_nothing"),
        ("i.tenant_id = in_tenant and i.key", "i.key", "a_key_of_sql_belongs_to_its_tenant"),
        ("a.tenant_id = in_tenant and a.name", "a.name", _WITHIN),
        ("if not found then", "if false then", "sql_refuses_an_action_that_no_worker_declared"),
        ("k.tenant_id = in_tenant and k.name", "k.name", _WITHIN),
        ("k.name = in_queue)\n    on conflict do nothing", "k.name = in_queue)", _AGAIN),
        ("q.tenant_id = in_tenant and q.name = in_queue\n    on conflict do nothing", "q.name = in_queue", _AGAIN),
        ("q.tenant_id = in_tenant and q.name", "q.name", _WITHIN),
        ("l.tenant_id = in_tenant and q.name", "q.name", _WITHIN),
    ),
    *killed(
        "take_span",
        ("perform pg_advisory_xact_lock(1752132967, 0);", "", "one_span_is_taken_at_a_time"),
        ("raise exception 'The span is taken.' using errcode = 'HF001';", "", _FREE),
    ),
    *killed(
        "begin_epoch",
        ("perform pg_advisory_xact_lock(1752132979, 0);", "", "one_process_begins_an_epoch"),
        ("where t.state = 'r';", ";", "a_restored_database_takes_leases_and_nothing_else"),
        (
            "where w.state in ('active', 'draining', 'lost')",
            "",
            "a_restored_database_takes_leases_and_nothing_else",
        ),
        ("perform pg_advisory_xact_lock(1752132966, 0);", "", "no_id_is_drawn_while_an_epoch_begins"),
        ("perform pg_advisory_xact_lock(1752132967, 0);", "", "no_id_is_drawn_while_an_epoch_begins"),
    ),
    *killed("compact_block", ("and r.state <> 'o'", "", "a_run_that_is_run_again_stays")),
    *killed(
        "count_completed",
        ("c for update;\n  else", "c;\n  else", "two_who_count_count_nothing_twice"),
        ("for update skip locked", "for update", "a_pass_that_counts_does_not_wait_for_another"),
        ("for update skip locked", "", "a_pass_that_counts_does_not_wait_for_another"),
    ),
    *killed(
        "recount_completed",
        ("perform from holdfast.counted c for update;", "", "who_counts_anew_waits_for_who_counts"),
    ),
    *killed("hint_new", ("where n.state = 'q'", "", "a_task_that_waits_for_its_time_has_no_hint")),
    *killed(
        "move_staged",
        ("and _lease = $2", "", "rows_of_a_lost_attempt_are_not_committed_by_the_next"),
        ("'on conflict do nothing'", "''", "a_row_that_is_there_is_not_added_again"),
    ),
    *killed("drop_staged", ("and _lease = $2", "", "sweeping_leaves_the_part_of_the_next_attempt")),
]
