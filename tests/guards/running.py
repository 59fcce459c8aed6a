"""The guards of runs and their nodes."""

from __future__ import annotations

from collections.abc import Sequence

from tests.guards.mutant import Mutant, killed, redundant

_LEFT = "a_letter_that_was_left_stays_left_whatever_becomes_of_its_node"

RUNNING: Sequence[Mutant] = [
    *killed(
        "lock_runs",
        ("and r.state = 'o'", "", "a_run_that_is_over_is_not_opened_by_a_late_end"),
        ("for no key update of r", "", "nodes_that_end_together_are_both_counted"),
        ("order by r.run_id", "order by r.run_id desc", "runs_are_locked_in_the_order_of_their_ids"),
    ),
    *killed(
        "settle_completed",
        ("for no key update of r", "", "nodes_that_end_together_are_both_counted"),
        ("order by r.run_id", "order by r.run_id desc", "runs_are_locked_in_the_order_of_their_ids"),
    ),
    redundant("settle_completed", "and r.state = 'o'", "", "a run whose task was live a moment ago is open"),
    *killed(
        "advance_runs",
        ("and r.state = 'o'\n  returning", "\n  returning", "a_run_that_is_over_is_not_opened_by_a_late_end"),
    ),
    *killed(
        "lock_run",
        ("and r.tenant_id = $2", "and $2::int is not null", "a_run_is_seen_and_steered_by_its_tenant_alone"),
        ("for no key update of r", "", "a_retry_and_an_end_at_once_lose_nothing"),
    ),
    *killed(
        "pause_run",
        ("and r.tenant_id = $2", "and $2::int is not null", "a_run_is_seen_and_steered_by_its_tenant_alone"),
        ("and r.state = 'o'", "", "only_an_open_run_is_paused_once_and_resumed_once"),
        ("and r.paused_at is null", "", "only_an_open_run_is_paused_once_and_resumed_once"),
    ),
    *killed("resume_run", ("and r.paused_at is not null", "", "only_an_open_run_is_paused_once_and_resumed_once")),
    redundant(
        "resume_run",
        "and r.state = 'o'",
        "",
        "a run that ends is not paused any more, and its lock is held from the look to the update",
    ),
    *killed("cancel_run", ("and r.state = 'o'", "", "a_run_that_is_over_is_not_canceled")),
    *killed("cancel_waits", ("and n.state = 'w'", "", "a_canceled_run_ends_only_the_nodes_that_wait")),
    *killed(
        "reopen_run",
        (
            "where r.run_id = $1 and r.state in ('o', 'c', 'f') and r.generation = $7 and r.canceled_at is null",
            "where r.run_id = $1 and $7::int is not null",
            "a_canceled_run_is_never_opened_again",
        ),
    ),
    *killed(
        "delete_signal_answers",
        (
            "and n.node_no = any($2::int[])",
            "and $2::int[] is not null",
            "a_node_that_asks_again_forgets_its_own_answers_alone",
        ),
        ("and n.wait_key like 'approval:%'", "", "an_event_is_there_for_a_node_that_runs_again"),
        ("and s.wait_key = n.wait_key", "", "a_node_that_asks_again_forgets_its_own_answers_alone"),
    ),
    *killed("answer_child", ("and r.state <> 'o'", "", "an_answer_is_told_once")),
    *killed("answer_child", ("and not r.is_answered", "", "an_answer_is_told_once")),
    *killed("count_items", ("and n.state = 'm'", "", "items_are_counted_only_while_their_node_maps")),
    *killed("retry_items", ("and a.state = 'c'", "and false", "only_members_that_did_not_complete_run_again")),
    *killed(
        "ensure_flow",
        ("on conflict (tenant_id, name, version) do nothing", "", "a_flow_is_kept_once_by_whoever_comes_second"),
    ),
    *killed(
        "ensure_snapshot",
        ("on conflict (flow_id, digest) do nothing", "", "a_snapshot_is_interned_once_by_whoever_comes_second"),
    ),
    *killed(
        "await_tasks",
        ("and r.state = 'o'", "", "who_waits_for_a_run_that_is_over_is_not_kept_waiting"),
        ("and t.tenant_id = $2", "and $2::int is not null", "another_tenant_marks_nothing_as_awaited"),
        ("and r.tenant_id = $2", "and $2::int is not null", "another_tenant_marks_nothing_as_awaited"),
    ),
    *killed(
        "delete_old_signals",
        ("where r.state = 'o' and", "where false and", "an_event_that_an_open_run_may_wait_for_is_kept"),
        ("and r.state = 'o'\n    where", "\n    where", "an_event_sent_to_a_run_that_is_over_goes"),
    ),
    *killed("count_items", ("and a.state = 'c'", "and false", "items_that_wait_their_turn_are_dropped_by_a_cancel")),
    *killed("further_items", ("and a.state = 'c'", "and false", "only_members_that_did_not_complete_run_again")),
    redundant(
        "further_items",
        "and n.state = 'm'\n)",
        "\n)",
        "a node that is over let all its items go, or dropped them: nothing is left behind its last one",
    ),
    redundant(
        "further_items", "and n.state = 'm' and g.next", "and g.next", "the node was read under the lock of its run"
    ),
    redundant(
        "keep_children",
        "for no key update of c",
        "",
        "the update takes the same locks; only their order would be left to its plan, which follows the index",
    ),
    redundant(
        "replace_children",
        "for no key update of c",
        "",
        "the update takes the same locks; only their order would be left to its plan, which follows the index",
    ),
    *killed("owe_rows", ("and g.state in ('b', 'c')", "", "an_old_generation_is_owed_nothing")),
    redundant("owe_rows", "g.tenant_id = $2 and", "$2::int > 0 and", "tasks build generations of their own tenant"),
    redundant("owe_rows", "and a.state = 'c'", "", "what never completed has no rows: nobody need look for them"),
    *killed("remove_owed_rows", ("and o.state in ('b', 'c')", "", "a_generation_that_was_rolled_back_keeps_its_rows")),
    *killed("unwant_child", ("and c.is_wanted", "", "a_child_is_told_to_its_node_again_only_if_it_was_wanted")),
    *killed(
        "close_replaced",
        (
            "and d.state in ('open', 'retry_requested', 'retrying', 'ignored')",
            "",
            "a_letter_that_was_resolved_stays_so_when_its_run_is_replaced",
        ),
        ("r.is_replaced and", "", "letters_are_closed_only_of_runs_that_were_replaced"),
        ("for update of d skip locked", "", "who_replaces_a_run_waits_for_none_of_its_letters"),
    ),
    *killed(
        "park_node",
        ("and d.state in ('open', 'retry_requested', 'retrying')", "", _LEFT),
        ("for update of d skip locked", "", "who_ends_a_node_waits_for_none_of_its_letters"),
    ),
    *killed(
        "resolve_completed_nodes",
        ("(d.wants_sweep or (d.state = 'retrying' and not d.wants_sweep)) and", "", _LEFT),
        ("and n.state = 'c'", "", "the_letter_of_a_node_that_waits_again_is_not_resolved"),
        ("for update of d skip locked", "", "who_ends_a_node_waits_for_none_of_its_letters"),
    ),
]
