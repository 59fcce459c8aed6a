"""The scenarios of the sweep: what is there before an act, and what must be true after the crash and the repair."""

from __future__ import annotations

from typing import Any

from tests.crash import again, bounds, letters, outbox, passes, runs, schedules, tasks
from tests.crash.scenario import Scenario

from holdfast.engine.engine import Engine
from holdfast.testing.clock import DatabaseClock


async def nothing(engine: Engine, clock: DatabaseClock, given: dict[str, Any]) -> None:
    pass


SCENARIOS = [
    Scenario(name="enqueue_single", arrange=nothing, judge=tasks.judge_enqueue, is_repeatable=False, statements_min=7),
    Scenario(name="enqueue_delayed", arrange=nothing, judge=tasks.judge_enqueue, is_repeatable=False, statements_min=7),
    Scenario(name="enqueue_one", arrange=nothing, judge=tasks.judge_enqueue, is_repeatable=False, statements_min=7),
    Scenario(name="enqueue_one_keyed", arrange=nothing, judge=tasks.judge_one_keyed, statements_min=9),
    Scenario(
        name="enqueue_copy",
        arrange=tasks.arrange_original,
        judge=tasks.judge_copied,
        is_repeatable=False,
        statements_min=5,
    ),
    Scenario(name="enqueue_bulk", arrange=nothing, judge=tasks.judge_bulk, is_repeatable=False, statements_min=9),
    Scenario(name="enqueue_keyed", arrange=nothing, judge=tasks.judge_keyed, statements_min=9),
    Scenario(
        name="enqueue_with_business",
        arrange=tasks.arrange_business,
        judge=tasks.judge_business,
        is_repeatable=False,
        statements_min=9,
    ),
    Scenario(name="exchange_mixed", arrange=tasks.arrange_exchange, judge=tasks.judge_exchange, statements_min=7),
    Scenario(
        name="exchange_completions", arrange=tasks.arrange_completions, judge=tasks.judge_exchange, statements_min=3
    ),
    Scenario(name="fail_and_retry", arrange=tasks.arrange_failure, judge=tasks.judge_exchange, statements_min=3),
    Scenario(name="fail_for_good", arrange=tasks.arrange_last_failure, judge=tasks.judge_exchange, statements_min=3),
    Scenario(
        name="claim_limited",
        arrange=bounds.arrange_limited,
        judge=bounds.judge_limited,
        is_repeatable=False,
        statements_min=6,
    ),
    Scenario(name="fail_guarded", arrange=bounds.arrange_guarded, judge=bounds.judge_guarded, statements_min=6),
    Scenario(
        name="claim_trial",
        arrange=bounds.arrange_trial,
        judge=bounds.judge_limited,
        is_repeatable=False,
        statements_min=6,
    ),
    Scenario(name="reconcile_metered", arrange=bounds.arrange_metered, judge=bounds.judge_metered, statements_min=7),
    Scenario(name="reap", arrange=tasks.arrange_expired, judge=tasks.judge_reaped, statements_min=3),
    Scenario(name="reconcile", arrange=tasks.arrange_due, judge=tasks.judge_reconciled),
    Scenario(name="cancel", arrange=tasks.arrange_cancel, judge=tasks.judge_canceled, is_repeatable=False),
    Scenario(
        name="retry", arrange=tasks.arrange_failed, judge=tasks.judge_retried, is_repeatable=False, statements_min=3
    ),
    Scenario(
        name="redrive_task",
        arrange=letters.arrange_dead,
        judge=letters.judge_redriven,
        is_repeatable=False,
        statements_min=10,
    ),
    Scenario(name="redrive_group", arrange=letters.arrange_dead, judge=letters.judge_asked, statements_min=3),
    Scenario(name="sweep", arrange=letters.arrange_requested, judge=letters.judge_swept, statements_min=4),
    Scenario(
        name="reinject",
        arrange=letters.arrange_dead,
        judge=letters.judge_redriven,
        is_repeatable=False,
        statements_min=7,
    ),
    Scenario(name="campaigns", arrange=letters.arrange_campaign, judge=letters.judge_campaign, statements_min=8),
    Scenario(name="rotate_token", arrange=nothing, judge=outbox.judge_tokens, is_repeatable=False, statements_min=8),
    Scenario(name="repair_letters", arrange=letters.arrange_unnoticed, judge=letters.judge_repaired, statements_min=3),
    Scenario(
        name="do_effect",
        arrange=outbox.arrange_effect,
        judge=outbox.judge_effect,
        is_repeatable=False,
        statements_min=4,
    ),
    Scenario(name="compensate", arrange=outbox.arrange_compensation, judge=outbox.judge_compensated, statements_min=6),
    Scenario(name="start_run", arrange=nothing, judge=runs.judge_started, is_repeatable=False, statements_min=9),
    Scenario(name="start_run_keyed", arrange=nothing, judge=runs.judge_keyed_run, statements_min=11),
    Scenario(name="exchange_join", arrange=runs.arrange_join, judge=runs.judge_run, statements_min=6),
    Scenario(name="exchange_failed_node", arrange=runs.arrange_failure_in_run, judge=runs.judge_run, statements_min=6),
    Scenario(name="exchange_items", arrange=runs.arrange_items, judge=runs.judge_run, statements_min=6),
    Scenario(
        name="redrive",
        arrange=runs.arrange_failed_run,
        judge=runs.judge_redriven,
        is_repeatable=False,
        statements_min=6,
    ),
    Scenario(
        name="cancel_run",
        arrange=runs.arrange_running,
        judge=runs.judge_canceled_run,
        is_repeatable=False,
        statements_min=6,
    ),
    Scenario(
        name="resume_run", arrange=runs.arrange_paused, judge=runs.judge_resumed, is_repeatable=False, statements_min=4
    ),
    Scenario(name="answer_parent", arrange=runs.arrange_child, judge=runs.judge_run, statements_min=5),
    Scenario(
        name="send_signal", arrange=runs.arrange_wait, judge=runs.judge_signal, is_repeatable=False, statements_min=5
    ),
    Scenario(
        name="answer_approval",
        arrange=runs.arrange_approval,
        judge=runs.judge_approval,
        is_repeatable=False,
        statements_min=9,
    ),
    Scenario(name="schedule_tasks", arrange=schedules.arrange_due, judge=schedules.judge_once, statements_min=12),
    Scenario(name="schedule_runs", arrange=schedules.arrange_due_flow, judge=schedules.judge_once, statements_min=11),
    Scenario(name="schedule_waiting", arrange=schedules.arrange_waiting, judge=schedules.judge_once, statements_min=9),
    Scenario(name="schedule_replace", arrange=schedules.arrange_busy, judge=schedules.judge_once, statements_min=17),
    Scenario(
        name="schedule_by_hand",
        arrange=schedules.arrange_kept,
        judge=schedules.decide_manual_slot,
        is_repeatable=False,
        statements_min=8,
    ),
    Scenario(name="schedule_declare", arrange=nothing, judge=schedules.judge_declared, statements_min=2),
    *again.SCENARIOS,
    *passes.SCENARIOS,
]

ALIKE = [
    ("enqueue_single", "enqueue_delayed", "enqueue_copy"),
    ("enqueue_keyed", "enqueue_one_keyed"),
    ("exchange_completions", "fail_and_retry", "fail_for_good"),
    ("exchange_join", "exchange_failed_node", "exchange_items"),
    ("start_run", "start_run_keyed"),
    ("schedule_tasks", "schedule_runs"),
    ("schedule_waiting", "schedule_replace"),
]
"""Scenarios of one act whose statements are nearly the same: the first of each group is in the fast tier."""

ACT_OF = {
    "claim_trial": "claim_limited",
    "reconcile_metered": "reconcile",
    "exchange_mixed": "exchange_reports",
    "exchange_completions": "exchange_reports",
    "fail_and_retry": "exchange_reports",
    "fail_for_good": "exchange_reports",
    "exchange_join": "exchange_reports",
    "exchange_failed_node": "exchange_reports",
    "exchange_items": "exchange_reports",
    "schedule_tasks": "schedule_pass",
    "schedule_runs": "schedule_pass",
    "schedule_waiting": "schedule_pass",
    "schedule_replace": "schedule_pass",
    **again.ACT_OF,
    **passes.ACT_OF,
}
