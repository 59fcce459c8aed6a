"""The suite's own scenarios once more, through a pooler in transaction mode: enqueue, settle, cancel, retry and more.

Nothing here is written for a pooler; the fixtures beside this file give the same tests another way to the database.
"""

from __future__ import annotations

from tests.engine.test_cancel import (  # noqa: F401
    test_a_cancel_racing_a_completion_leaves_one_winner,
    test_a_queued_task_is_canceled_at_once,
    test_a_worker_that_stops_when_asked_ends_the_task_as_canceled,
    test_past_its_grace_a_canceled_attempt_is_ended_by_force_though_it_beats,
)
from tests.engine.test_claim import (  # noqa: F401
    test_a_paused_queue_hands_out_nothing_until_it_is_resumed,
    test_a_task_of_a_full_queue_is_refused_as_at_limit,
    test_claimers_at_once_never_share_a_task,
)
from tests.engine.test_dead_letters import (  # noqa: F401
    test_a_success_resolves_all_letters_of_the_task,
    test_failures_that_differ_in_their_ids_are_one_group,
    test_the_life_of_a_letter_is_told,
)
from tests.engine.test_enqueue import (  # noqa: F401
    test_a_caller_waits_for_another_transaction_with_its_key_and_takes_over_if_that_fails,
    test_an_accepted_task_is_queued_with_its_input,
    test_an_enqueue_in_the_callers_transaction_rolls_back_with_it,
    test_lanes_and_policies_are_interned_once_by_callers_at_once,
    test_twenty_callers_with_one_key_get_one_task,
)
from tests.engine.test_reap import (  # noqa: F401
    test_a_lost_worker_costs_one_loss_and_cannot_settle_late,
    test_eight_reapers_at_once_equal_one,
)
from tests.engine.test_retry import (  # noqa: F401
    test_a_failed_task_goes_on_in_its_generation_with_one_retry_more_spent,
    test_a_re_drive_starts_a_generation_with_a_fresh_budget,
)
from tests.engine.test_settle import (  # noqa: F401
    test_a_mixed_batch_settles_each_task_by_its_own_outcome,
    test_of_two_reports_at_once_one_is_accepted,
    test_settling_and_beating_for_the_same_tasks_never_deadlock,
    test_the_identical_report_repeated_answers_as_before,
)
from tests.flow.test_maps import (  # noqa: F401
    test_a_failed_member_fails_the_map_and_only_it_runs_again,
    test_a_map_runs_once_per_member_and_gathers_in_order,
)
from tests.flow.test_runs import (  # noqa: F401
    test_nodes_go_when_their_upstreams_completed_and_the_run_ends_with_the_last,
    test_retry_runs_failed_nodes_and_their_descendants_again_and_keeps_the_rest,
)
from tests.flow.test_sub_flows import test_canceling_a_run_cancels_the_runs_it_started  # noqa: F401
