"""The guards of datasets."""

from __future__ import annotations

from collections.abc import Sequence

from tests.guards.mutant import Mutant, killed, redundant

WRITING: Sequence[Mutant] = [
    *killed(
        "ensure_dataset",
        ("on conflict (tenant_id, name) do nothing", "", "a_dataset_may_be_declared_by_many"),
    ),
    *killed(
        "lock_dataset",
        ("d.tenant_id = $1 and", "$1::int is not null and", "another_tenants_dataset_is_not_there"),
        ("for no key update of d", "", "declarations_wait_for_one_another"),
    ),
    *killed(
        "open_stage",
        ("t.attempt = $2", "$2::int is not null", "staging_needs_the_current_lease"),
        ("t.lease_token = $3", "$3::uuid is not null", "staging_needs_the_current_lease"),
        ("and t.state = 'r'", "", "a_reservation_stages_nothing"),
        ("and g.state in ('b', 'c')", "", "a_superseded_generation_takes_no_rows"),
        ("and g.tenant_id = t.tenant_id", "", "another_tenants_dataset_takes_no_rows"),
        ("on conflict (generation_id, task_id) do nothing", "", "a_task_writes_in_several_parts"),
    ),
    *killed(
        "grow_stage",
        ("and s.lease_token = $2", "and $2::uuid is not null", "a_lost_attempt_does_not_add_to_the_next_ones_part"),
        ("and s.rows = $4", "and $4::bigint is not null", "a_batch_said_twice_counts_once"),
    ),
    *killed(
        "lock_fence",
        ("t.attempt = $2", "$2::int is not null", "rows_need_the_current_attempt"),
    ),
    redundant("lock_fence", "and t.lease_token = $3", "", "take_stage names the token too"),
    redundant("lock_fence", "and t.state = 'r'", "", "only a running attempt can have staged under its token"),
    redundant("lock_fence", "for update of t", "", "settling locked the tasks of the batch before"),
    *killed(
        "lock_generations",
        ("for no key update of g", "", "a_commit_that_waited_for_a_cut_over_finds_itself_superseded"),
    ),
    *killed(
        "lock_datasets",
        ("for no key update of d", "", "who_waits_for_a_dataset_holds_none_of_its_generations"),
    ),
    *killed(
        "take_stage",
        ("s.lease_token = $2 and", "$2::uuid is not null and", "what_a_lost_attempt_staged_is_swept"),
    ),
    redundant("add_commit", "and g.state in ('b', 'c')", "", "the state was looked at under the generation's lock"),
    *killed(
        "stale_stages",
        ("and t.lease_token = s.lease_token", "", "what_a_lost_attempt_staged_is_swept"),
        ("for update of s skip locked", "", "sweepers_do_not_wait_for_one_another"),
    ),
    *killed(
        "delete_stage",
        ("s.lease_token = $2 and", "$2::uuid is not null and", "sweeping_leaves_the_part_of_the_next_attempt"),
    ),
    *killed(
        "delete_old_commits",
        (
            "o.committed_at < holdfast.instant() - make_interval(secs => $1::double precision * 86400)",
            "$1::double precision > 0",
            "young_commits_are_kept",
        ),
    ),
    *killed(
        "add_builds",
        ("and g.state in ('b', 'c')", "", "a_generation_that_leaves_gets_no_more_work"),
        ("for share of g", "", "a_generation_that_leaves_gets_no_more_work"),
    ),
    *killed("supersede", ("and g.state = 'c'", "", "a_cut_over_leaves_other_generations_as_they_are")),
    redundant("cut_over", "and g.state in ('b', 'o')", "", "the state was looked at under the dataset's lock"),
    *killed(
        "roll_back",
        ('and g.state = any($3::"char"[])', 'and $3::"char"[] is not null', "the_current_generation_cannot_be_dropped"),
    ),
    *killed(
        "lock_leaving",
        ("and g.state = 'r'", "", "tables_are_dropped_once"),
        ("and not g.is_kept", "", "a_kept_generation_keeps_its_tables"),
        ("for update of g skip locked", "", "who_drops_tables_does_not_wait_for_another"),
    ),
    redundant("end_generation", "and g.state = 'r'", "", "lock_leaving found it in this state and holds it"),
]
