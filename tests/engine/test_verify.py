"""`verify` is quiet on a sound database and names every kind of damage."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conftest import broken_in
from tests.core.flows import a_diamond, a_map, a_parent, a_sum
from tests.datasets.hands import declared, orders, rows, staged

from holdfast.core.tasks.outcome import Completed
from holdfast.engine.effects.gate import OpenEffect, Sender, open_effect
from holdfast.engine.effects.steps import StoredStep, keep_step
from holdfast.engine.engine import Engine
from holdfast.engine.queries.verify import verify
from holdfast.settings.settings import Settings
from holdfast.store.statements import statements_in
from holdfast.testing import factories as a
from holdfast.testing.engine_harness import EngineHarness
from holdfast.testing.run_coroutine import run_coroutine

INVARIANTS = [statement.name for statement in statements_in("invariants")]

DAMAGE = {
    "the_epoch_is_that_of_this_server": "update holdfast.epoch set timeline = timeline + 1",
    "no_id_is_before_its_epoch": "update holdfast.epoch set first_task_id = 1000000000000000",
    "events_are_not_ahead": """
        insert into holdfast.event (xid, tenant_id, kind, task_ids, attempts)
        values ('17592186044415', 1, 'queue.resumed', '{}', '{}')""",
    "the_server_was_not_replaced": """
        insert into holdfast.epoch (epoch, cause, first_task_id, middle_id, first_span, database_id, started_at)
        select epoch + 1, 'promoted', 0, 0, 0, database_id, started_at from holdfast.epoch""",
    "no_task_is_lost": "delete from holdfast.live where task_id = $queued",
    "completed_tasks_are_counted": "update holdfast.counted set seen = pg_current_snapshot()",
    "every_live_task_has_a_body": "delete from holdfast.body where task_id = $queued",
    "every_ended_task_has_a_body": "delete from holdfast.body where task_id = $failed",
    "every_completed_task_has_a_body": "delete from holdfast.body where task_id = $completed",
    "a_task_completes_once": """
        insert into holdfast.attempt (task_id, started_at, ended_at, attempt, tenant_id, state, lease_token)
        select task_id, started_at, ended_at, attempt + 1, tenant_id, state, gen_random_uuid()
        from holdfast.attempt where task_id = $completed""",
    "a_completed_task_is_not_live": """
        insert into holdfast.attempt (task_id, started_at, ended_at, attempt, tenant_id, state, lease_token)
        values ($queued, now(), now(), 1, 1, 'c', gen_random_uuid())""",
    "a_completed_task_has_not_failed": """
        insert into holdfast.attempt (task_id, started_at, ended_at, attempt, tenant_id, state, lease_token)
        values ($failed, now(), now(), 2, 1, 'c', gen_random_uuid())""",
    "an_ended_task_is_not_live": """
        insert into holdfast.live (task_id, tenant_id, lane_id, policy_id, priority, max_retries, max_losses, state)
        select task_id, tenant_id, lane_id, policy_id, priority, max_retries, max_losses, 'q'
        from holdfast.ended where task_id = $failed""",
    "an_attempt_ends_once": """
        insert into holdfast.attempt (task_id, started_at, ended_at, attempt, tenant_id, state, lease_token)
        select task_id, started_at, ended_at, attempt, tenant_id, 'e', gen_random_uuid()
        from holdfast.failure where task_id = $failed""",
    "attempts_are_numbered_without_gaps": "update holdfast.live set attempt = attempt + 1 where task_id = $running",
    "a_lease_is_granted_once": """
        update holdfast.failure set lease_token = (select lease_token from holdfast.live where task_id = $running),
          task_id = $running
        where task_id = $failed""",
    "a_running_attempt_has_a_lease": "update holdfast.live set lease_expires_at = null where task_id = $running",
    "an_idle_task_has_no_lease": "update holdfast.live set started_at = now() where task_id = $queued",
    "a_running_attempt_has_a_worker": "delete from holdfast.worker",
    "a_worker_that_left_says_when": "update holdfast.worker set state = 'gone'",
    "a_reserved_attempt_has_a_launch": """
        update holdfast.live set state = 'v', lease_token = gen_random_uuid(), started_at = now(),
          lease_expires_at = now()
        where task_id = $queued""",
    "a_running_attempt_spent_its_token": """
        insert into holdfast.launch (
          task_id, attempt, tenant_id, launcher, state, holder, token_hashes, token_expires_at, launching_until
        )
        values ($running, 1, 1, 'ecs', 'l', gen_random_uuid(), array['x'::bytea], now(), now())""",
    "a_failed_launch_is_due_again": """
        insert into holdfast.launch (
          task_id, attempt, tenant_id, launcher, state, holder, token_hashes, token_expires_at, launching_until
        )
        values ($queued, 1, 1, 'ecs', 'f', null, '{}', now(), now())""",
    "an_attempt_has_one_slot": """
        insert into holdfast.launch (
          task_id, attempt, tenant_id, launcher, state, holder, token_hashes, token_expires_at, launching_until
        )
        values ($queued, 1, 1, 'ecs', 'p', '00000000-0000-0000-0000-000000000001', '{}', now(), now());
        insert into holdfast.launch_slot (launcher, slot, tenant_id, task_id, attempt, holder, expires_at)
        values ('ecs', 1, 1, $running, 1, '00000000-0000-0000-0000-000000000001', now())""",
    "budgets_hold": "update holdfast.failure set state = 'l' where task_id = $retrying",
    "budgets_are_counted_right": "update holdfast.live set retries = 2 where task_id = $retrying",
    "a_failed_task_has_a_failure": "update holdfast.failure set decision = 'cancel' where task_id = $failed",
    "a_waiting_retry_has_a_failure": "delete from holdfast.failure where task_id = $retrying",
    "only_published_transitions_happen": """
        insert into holdfast.event (tenant_id, kind, task_ids, attempts)
        values (1, 'task.started', array[$completed], array[2])""",
    "events_agree_with_state": """
        insert into holdfast.event (tenant_id, kind, task_ids, attempts)
        values (1, 'task.completed', array[$running], array[1])""",
    "a_key_stands_for_a_task": "update holdfast.idempotency set task_id = 999",
    "a_keyed_task_keeps_its_key": "delete from holdfast.idempotency",
    "a_keyed_run_keeps_its_key": "update holdfast.run set key = 'order-9' where run_id = $run",
    "a_body_stays_with_its_tenant": """
        insert into holdfast.tenant (tenant_id, name) values (7, 'other');
        update holdfast.body set tenant_id = 7 where task_id = $queued""",
    "a_live_task_stays_with_its_body": "update holdfast.live set lane_id = lane_id + 1 where task_id = $queued",
    "an_ended_task_stays_with_its_body": "update holdfast.ended set lane_id = lane_id + 1 where task_id = $failed",
    "history_stays_with_its_tenant": "update holdfast.failure set tenant_id = 7 where task_id = $failed",
    "an_effect_has_one_key": "update holdfast.effect set user_key = 'k'",
    "an_effect_was_sent_by_an_attempt": "update holdfast.effect set lease_token = gen_random_uuid()",
    "an_effect_stays_with_its_tenant": """
        insert into holdfast.tenant (tenant_id, name) values (7, 'other');
        update holdfast.effect set tenant_id = 7""",
    "an_effect_without_an_answer_is_shown_as_unknown": """
        create or replace function holdfast.effect_state(e holdfast.effect) returns text language sql stable
        return 'pending'""",
    "a_step_was_kept_by_an_attempt": "update holdfast.step set attempt = 9",
    "policies_say_what_they_contain": "update holdfast.policy set max_losses = 77",
    "every_block_has_its_partitions": """
        insert into holdfast.block (block, first_id, last_id) values (5, 50000000000, 59999999999)""",
    "the_next_id_has_a_block": "select setval('holdfast.task_id', 77777777777)",
    "the_next_span_has_a_block": "select setval('holdfast.span', 777777777777)",
    "runs_count_their_nodes": "update holdfast.run set failed = 1 where run_id = $run",
    "a_blocked_node_waits_for_another": """
        delete from holdfast.live where run_id = $run;
        insert into holdfast.attempt (task_id, started_at, ended_at, attempt, tenant_id, state, lease_token)
        values ($run + 3, now(), now(), 1, 1, 'c', gen_random_uuid())""",
    "nodes_count_their_upstreams": "update holdfast.node set succeeded = 2 where run_id = $run",
    "a_live_node_belongs_to_an_open_run": "update holdfast.live set generation = 2 where run_id = $run",
    "items_are_counted_right": "update holdfast.node set items_pending = 1 where state = 'm'",
    "a_node_that_maps_has_items_under_way": """
        delete from holdfast.live t using holdfast.node n where n.state = 'm' and t.task_id >= n.items_first""",
    "a_node_that_runs_a_flow_has_its_run": "update holdfast.node set child_run_id = $run where state = 's'",
    "runs_stay_with_their_tenant": "update holdfast.node set tenant_id = 7 where run_id = $run",
    "the_clock_is_the_databases_own": """
        create or replace function holdfast.instant() returns timestamptz language sql stable
        return statement_timestamp() + interval '1 minute'""",
    "every_index_is_valid": """
        update pg_index set indisvalid = false where indexrelid = 'holdfast.live_not_queued'::regclass""",
    "every_constraint_is_checked": "drop index holdfast.live_invalid_rows",
    "expired_leases_are_reaped": """
        update holdfast.live set lease_expires_at = now() - interval '1 hour' where task_id = $running""",
    "dead_workers_hold_nothing": "update holdfast.worker set state = 'gone', ended_at = now() - interval '1 hour'",
    "ended_children_are_answered": """
        update holdfast.run set state = 'x', pending = 0, active = 0, canceled_at = now(),
          ended_at = now() - interval '1 hour'
        where parent_run_id is not null""",
    "waits_end_at_their_deadline": """
        update holdfast.node set state = 'w', wait_key = 'k', deadline = now() - interval '1 hour' where state = 's'""",
    "due_tasks_are_promoted": "update holdfast.live set due_at = now() - interval '1 hour' where task_id = $retrying",
    "limits_hold": """
        update holdfast.queue set max_running = 1;
        update holdfast.live set lane_id = lane_id where task_id = $running""",
    "half_open_breakers_keep_to_their_trials": """
        insert into holdfast.breaker
          (tenant_id, action, share, attempts_min, window_seconds, open_seconds, trials, state, since)
        values (1, 'shop.charge', 1, 1, 60, 30, 1, 'h', now() - interval '1 hour')""",
    "quotas_hold": """
        insert into holdfast.quota (quota_id, tenant_id, retries_max, window_seconds) values (77, 1, 2, 60);
        insert into holdfast.tally (guard_id, slot, shard, slice, whole, part)
        values (77, 0, -1, holdfast.current_slice(60) - 6, 0, 1), (77, 1, -1, holdfast.current_slice(60), 0, 2)""",
    "a_failed_task_has_a_dead_letter": "delete from holdfast.dead_letter where task_id = $failed",
    "an_open_dead_letter_belongs_to_a_failed_task": """
        update holdfast.dead_letter set generation = 0 where task_id = $failed""",
    "a_dead_letter_belongs_to_a_failure": "delete from holdfast.failure where task_id = $failed",
    "a_success_leaves_no_dead_letter_open": """
        insert into holdfast.dead_letter (tenant_id, task_id, lane_id, attempts, generation, source_id, fingerprint)
        values (1, $completed, 1, 0, 0, '', '')""",
    "a_dead_letter_follows_an_older_one": "update holdfast.dead_letter set previous_id = dead_letter_id",
    "an_idle_dead_letter_is_swept": """
        update holdfast.dead_letter set state = 'retrying', disposition = 'x', actor = 'x', dispatches = 1,
          dispatched_at = now(), generation = 0""",
    "a_dead_letter_stays_with_its_tenant": "update holdfast.failure set tenant_id = 7 where task_id = $failed",
    "campaigns_count_their_dead_letters": """
        insert into holdfast.campaign (tenant_id, name, fingerprint, state, reason, started_by, needs_approval, canary,
          at_once, upto_id, lane_ids, total, released)
        values (1, 'x', 'x', 'canary', 'x', 'x', false, 1, 1, 1, '{}', 1, 1)""",
    "a_campaign_lists_its_dead_letters": "update holdfast.dead_letter set campaign_id = 7",
    "requested_dead_letters_are_dispatched": """
        update holdfast.dead_letter set state = 'retry_requested', disposition = 'x', actor = 'x', wants_sweep = true,
          changed_at = now() - interval '1 hour';
        update holdfast.ended set ended_at = now() - interval '1 hour'""",
    "attempts_follow_one_another": """
        update holdfast.attempt set started_at = started_at - interval '1 hour' where attempt = 2""",
    "a_fired_slot_has_its_task_or_run": "update holdfast.slot set task_id = 999",
    "no_slot_fires_twice": """
        drop index holdfast.slot_task;
        insert into holdfast.slot (schedule_id, slot_at, tenant_id, state, task_id, cause)
        select schedule_id, slot_at + interval '1 hour', tenant_id, state, task_id, cause from holdfast.slot""",
    "slots_stay_with_their_tenant": """
        insert into holdfast.tenant (tenant_id, name) values (7, 'other');
        update holdfast.body set tenant_id = 7 where task_id = $scheduled""",
    "due_schedules_fire": "update holdfast.schedule set look_at = now() - interval '1 hour'",
    "audit_rows_are_what_was_written": """
        alter table holdfast.audit disable trigger all; update holdfast.audit set actor = 'nobody'""",
    "audit_rows_follow_one_another": """
        alter table holdfast.audit disable trigger all; update holdfast.audit set prev_hash = hash""",
    "audit_heads_name_the_last_row": """
        alter table holdfast.audit disable trigger all; delete from holdfast.audit""",
    "the_audit_log_is_append_only": "drop trigger only_forward on holdfast.audit_head",
    "a_dataset_shows_its_current_generation": "update holdfast.dataset set current_version = 2",
    "every_generation_has_its_tables": "drop table holdfast_data.orders_v1_staged",
    "readers_see_the_current_generation": """
        create or replace view holdfast_data.orders as select order_id, cents from holdfast_data.orders_v2""",
    "rows_of_datasets_are_counted": "delete from holdfast_data.orders_v1 where order_id = 1",
    "a_commit_belongs_to_a_completed_attempt": "update holdfast.dataset_commit set attempt = 7",
    "tenant_limits_hold": "update holdfast.tenant set max_running = 1",
    "workers_stay_with_their_tenant": """
        insert into holdfast.tenant (tenant_id, name) values (7, 'other');
        update holdfast.worker set tenant_id = 7""",
    "notes_stay_with_their_tenant": """
        insert into holdfast.note (task_id, attempt, tenant_id, kind, detail) values ($running, 1, 7, 'log', '{}')""",
    "snapshots_stay_with_their_tenant": """
        insert into holdfast.tenant (tenant_id, name) values (7, 'other');
        insert into holdfast.policy (tenant_id, digest, max_retries, max_losses, content) values (7, '', 1, 1, '{}');
        update holdfast.snapshot set policy_ids =
          array_fill((select policy_id from holdfast.policy where tenant_id = 7), array[cardinality(policy_ids)])""",
    "datasets_stay_with_their_tenant": """
        insert into holdfast.tenant (tenant_id, name) values (7, 'other');
        update holdfast.body set tenant_id = 7 where task_id in (select task_id from holdfast.dataset_build)""",
    "campaigns_stay_with_their_tenant": """
        insert into holdfast.tenant (tenant_id, name) values (7, 'other');
        insert into holdfast.campaign (tenant_id, name, fingerprint, state, reason, started_by, needs_approval, canary,
          at_once, upto_id, lane_ids, total)
        values (7, 'x', 'f', 'canary', 'r', 'me', false, 1, 1, 1, '{}', 1);
        update holdfast.dead_letter set campaign_id = (select campaign_id from holdfast.campaign)""",
    "every_table_has_row_level_security": "create table holdfast.forgotten (tenant_id int)",
    "no_rule_bypasses_row_level_security": "grant delete on holdfast.audit to holdfast_tenant",
    "staged_rows_are_swept": """
        update holdfast.dataset_stage set staged_at = now() - interval '1 hour', attempt = 7""",
    "owed_rows_are_taken_back": """
        insert into holdfast.dataset_owed (generation_id, task_id, run_id, tenant_id, attempt)
        select g.generation_id, 1, r.run_id, g.tenant_id, 1 from holdfast.dataset_generation g, holdfast.run r limit 1;
        update holdfast.run
        set state = 'c', pending = 0, active = 0, ended_at = now() - interval '1 hour'
        where run_id = (select run_id from holdfast.dataset_owed)""",
    "the_installation_has_its_secrets": "delete from holdfast.secret",
}


@pytest.fixture
async def stages(harness):
    """One task in each stage of life."""
    return await in_each_stage(harness)


@pytest.fixture(scope="module")
def staged_database(holdfast_databases):
    """The same in a database that is made once, to be cloned for each kind of damage; with the ids."""
    url = run_coroutine(holdfast_databases.create())

    async def prepare():
        async with Engine(url, Settings(), sessions_max=10) as engine:
            return await in_each_stage(EngineHarness(engine))

    yield url, run_coroutine(prepare())
    run_coroutine(holdfast_databases.drop(url))


@pytest.fixture
async def damageable(staged_database, holdfast_databases):
    url, found = staged_database
    clone = run_coroutine(holdfast_databases.clone(url))
    async with Engine(clone, Settings(), sessions_max=10) as engine:
        yield engine, found
    run_coroutine(holdfast_databases.drop(clone))


async def in_each_stage(harness) -> dict[str, str]:
    found = {
        "queued": (await harness.enqueue(a.a_task(key="order-1"))).task_id,
        "running": (await a.a_running_task(harness)).task_id,
        "completed": await a.a_completed_task(harness),
        "failed": await a.a_failed_task(harness),
        "canceled": await a.a_canceled_task(harness),
        "retried": await a.a_retrying_task(harness, base_backoff_secs=0),
        "retrying": await a.a_retrying_task(harness, max_losses=0),
    }
    await harness.settle(await harness.claim_task(found["retried"]), Completed(b"null"))
    await harness.schedules.keep()
    found["scheduled"] = (await harness.schedules.fire()).task_id
    await harness.settle(await harness.claim_task(found["scheduled"]), Completed(b"null"))
    await _act(harness)
    await a.a_running_task(harness)
    found["run"] = await a_run_in_each_stage(harness)
    await a_dataset(harness)
    return found


async def _act(harness) -> None:
    """A task with two effects that nobody answered and a step."""
    lease, engine = await a.a_running_task(harness), harness.engine
    for key in ("one", "two"):
        wanted = OpenEffect(name="smtp.send", user_key=key, ordinal=0, digest=b"")
        sender = Sender(claimed=lease.claimed, tenant="default")
        await open_effect(engine.database, engine.catalog, sender, wanted)
    await keep_step(engine.database, lease.claimed, StoredStep("page", b"", b"1"))
    await harness.settle(lease, Completed(b"null"))


async def a_dataset(harness) -> None:
    """Two versions: the current one with two rows, and one to which a running attempt writes."""
    engine = harness.engine
    generations = [await declared(engine, orders(version)) for version in (1, 2)]
    done, running = await a.a_running_task(harness), await a.a_running_task(harness)
    commit = await staged(engine, done, generations[0], rows(1, 2))
    await harness.settle(done, Completed(b"null", (commit,)))
    await staged(engine, running, generations[1], rows(1))


async def a_run_in_each_stage(harness) -> str:
    """A join with one of two done, a node with items, and a node with a run of its own."""
    runs = [await harness.runs.start(flow) for flow in (a_diamond(), a_map())]
    await harness.runs.snapshot(a_sum(1))
    await harness.runs.start(a_parent())
    for run, node, output in ((runs[0], 0, b"1"), (runs[0], 1, b"1"), (runs[1], 0, b'{"all": [1, 2]}')):
        lease = await harness.claim_task(str(int(run) + 1 + node))
        await harness.settle(lease, Completed(output))
    return runs[0]


def damage(name: str, stages: dict[str, str]) -> str:
    script = DAMAGE[name]
    for stage, task_id in stages.items():
        script = script.replace(f"${stage}", task_id)
    return script


def _marked(name: str) -> Any:
    """Some damage only a superuser can do."""
    is_privileged = "disable trigger all" in DAMAGE[name] or "pg_index" in DAMAGE[name]
    return pytest.param(name, marks=[pytest.mark.superuser] if is_privileged else [])


async def test_a_sound_database_has_no_violations_and_no_warnings(engine, stages):
    verified = await verify(engine.database)
    assert (verified.checked, verified.violations, verified.warnings) == (len(INVARIANTS), [], [])


@pytest.mark.representative(one_in=4)
@pytest.mark.parametrize("name", [_marked(name) for name in INVARIANTS])
async def test_damage_is_named(damageable, name):
    engine, stages = damageable
    async with engine.database.session() as session:
        await session.execute(damage(name, stages))
    verified = await verify(engine.database, only=[name])
    found = {violation.name: violation for violation in verified.violations + verified.warnings}
    assert name in found
    assert found[name].count > 0 and found[name].evidence
    if found[name] in verified.violations:
        assert any(name in line for line in await broken_in(engine.database.url)), "the end of every test misses it"


@pytest.mark.parametrize("body", ["plpgsql stable as 'begin return now(); end'", "sql stable as 'select now()'"])
async def test_a_clock_that_is_no_expression_is_named(damageable, body):
    engine, _ = damageable
    name = "the_clock_is_the_databases_own"
    await engine.database.fetch(f"create or replace function holdfast.instant() returns timestamptz language {body}")
    assert [one.name for one in (await verify(engine.database, only=[name])).violations] == [name]


async def test_a_node_held_back_for_no_reason_is_named(damageable):
    engine, stages = damageable
    name = "a_blocked_node_waits_for_another"
    await engine.database.fetch(
        "update holdfast.node set state = 'h' where run_id = $1 and state = 'b'", int(stages["run"])
    )
    assert [one.name for one in (await verify(engine.database, only=[name])).violations] == [name]
    await engine.database.fetch("update holdfast.run set paused_at = now(), paused_by = 'ann', paused_reason = ''")
    assert (await verify(engine.database, only=[name])).is_sound


@pytest.mark.breaks_invariants
async def test_what_time_mends_is_only_a_warning(engine, stages):
    async with engine.database.session() as session:
        await session.execute(damage("expired_leases_are_reaped", stages))
    verified = await verify(engine.database)
    assert verified.is_sound and [warning.name for warning in verified.warnings] == ["expired_leases_are_reaped"]


@pytest.mark.breaks_invariants
async def test_evidence_is_bounded_and_the_count_is_not(engine, harness):
    await harness.enqueue_many(a.a_task(), [{}] * 50)
    async with engine.database.session() as session:
        await session.execute("delete from holdfast.live")
    violation = (await verify(engine.database)).violations[0]
    assert (violation.count, len(violation.evidence)) == (50, 10)


async def test_no_invariant_asks_a_table_once_for_each_row_of_another(engine):
    """A database that was filled a moment ago has no statistics: only whole joins take a predictable time there."""
    asked_by_row = {
        "audit_rows_are_what_was_written",  # puts together the columns of one row
        "every_table_has_row_level_security",  # asks the catalog, which is small
    }
    async with engine.database.session() as session:
        plans = {
            one.name: "\n".join(row[0] for row in await session.fetch(f"explain {one.text}"))
            for one in statements_in("invariants")
        }
    assert {name for name, plan in plans.items() if "SubPlan" in plan} == asked_by_row


def test_every_kind_of_damage_is_tried():
    assert sorted(DAMAGE) == sorted(INVARIANTS)
