-- name: update_dead_letters_after_settle(redriven_task_ids, failed_task_ids, failed_run_ids, actor) -> nothing
-- Update dead letters after re-driven tasks were settled. Completed tasks (@redriven_task_ids): their unresolved dead letters are
-- resolved. Tasks that failed for good again (@failed_task_ids, of the runs @failed_run_ids): dead letters that retried them, or their run, go
-- back to the sweep and keep their count. All are locked in one order, after the tasks and before any run.
with locked as materialized (
  select d.dead_letter_id, d.task_id = any(@redriven_task_ids::bigint[]) as is_done
  from holdfast.dead_letter d
  where (d.task_id = any(@redriven_task_ids::bigint[]) and d.state in ('open', 'retry_requested', 'retrying', 'ignored'))
    or ((d.task_id = any(@failed_task_ids::bigint[]) or d.run_id = any(@failed_run_ids::bigint[])) and d.state = 'retrying' and not d.wants_sweep)
  order by d.dead_letter_id
  for update of d
),
roused as (
  update holdfast.dead_letter d
  set wants_sweep = true
  where d.dead_letter_id = any(array(select dead_letter_id from locked where not is_done))
),
done as (
  update holdfast.dead_letter d
  set state = 'resolved', disposition = 'retry_succeeded', actor = @actor, wants_sweep = false,
    disposition_reason = 'a later attempt completed', changed_at = holdfast.instant()
  where d.dead_letter_id = any(array(select dead_letter_id from locked where is_done))
  returning d.tenant_id, d.task_id, d.attempts
)
insert into holdfast.event (tenant_id, kind, task_ids, attempts)
select tenant_id, 'dead_letter.resolved', array_agg(task_id), array_agg(attempts)
from done
group by tenant_id
returning kind;

-- name: dead_letters_to_sweep(after, limit) -> rows
-- nullable: run_id
-- Return the next page of dead letters whose retry was requested or has ended without success.
select d.dead_letter_id, d.run_id, d.tenant_id
from holdfast.dead_letter d
where d.wants_sweep and d.dead_letter_id > @after
order by d.dead_letter_id
limit @limit;

-- name: lock_dead_letters(dead_letter_ids) -> rows
-- nullable: node_no, dispatched_at, owner_id
-- Lock dead letters of plain tasks, with the facts that the sweep decides by: a task outside a flow counts as its own
-- run. Rows that another sweep has locked are skipped. Dead letters of a campaign are left to the campaign.
with locked as materialized (
  select d.*
  from holdfast.dead_letter d
  where d.dead_letter_id = any(@dead_letter_ids::bigint[]) and d.state in ('retry_requested', 'retrying') and d.wants_sweep
    and d.campaign_id is null and d.run_id is null
  order by d.dead_letter_id
  for update of d skip locked
)
select locked.dead_letter_id, locked.task_id, locked.node_no, locked.tenant_id, locked.state, locked.dispatches, locked.dispatches_max,
  locked.dispatched_at,
  'retry' = any(locked.recovery_options) as can_retry, holdfast.instant() as at,
  coalesce(t.tenant_id, e.tenant_id, a.tenant_id) as owner_id,
  case
    when t.task_id is not null then 'active'
    when e.state = 'f' then 'failed'
    when e.state = 'x' then 'canceled'
    when a.task_id is not null then 'completed'
    else 'gone'
  end as stand,
  a.task_id is not null as is_superseded
from locked
left join holdfast.live t on t.task_id = locked.task_id
left join holdfast.ended e on e.task_id = locked.task_id
left join lateral (
  select a.task_id, a.tenant_id
  from holdfast.attempt a
  where a.task_id = locked.task_id and a.state = 'c' and a.generation > locked.generation
  limit 1
) a on true;

-- name: lock_run_dead_letters(run_id, tenant_id) -> rows
-- nullable: dispatched_at
-- Lock all dead letters of one run that want a decision, before the run itself. A transaction that waited here sees
-- what the previous one did. An item that a re-drive replaced is superseded when its node completed with other items.
with locked as materialized (
  select d.*
  from holdfast.dead_letter d
  where d.run_id = @run_id and d.tenant_id = @tenant_id and d.state in ('retry_requested', 'retrying') and d.wants_sweep
    and d.campaign_id is null
  order by d.dead_letter_id
  for update of d
)
select locked.dead_letter_id, locked.task_id, locked.node_no, locked.tenant_id, locked.state, locked.dispatches, locked.dispatches_max,
  locked.dispatched_at,
  'retry' = any(locked.recovery_options) as can_retry, holdfast.instant() as at,
  exists (
    select from holdfast.attempt a
    where a.task_id = locked.task_id and a.state = 'c' and a.generation > locked.generation
    union all
    select from holdfast.past_items p
    join holdfast.node n on n.run_id = p.run_id and n.node_no = p.node_no
    where p.run_id = @run_id and locked.task_id between p.items_first and p.items_first + p.items - 1 and n.state = 'c'
  ) as is_superseded
from locked;

-- name: nodes_at_rest(run_id, node_nos) -> rows
-- Return those of some nodes of a run that a re-drive would reset: they failed, or an upstream did. Requires the lock
-- of the run.
select n.node_no
from holdfast.run r
cross join lateral holdfast.nodes_of(r.run_id) n
where r.run_id = @run_id and n.node_no = any(@node_nos::int[]) and n.state in ('failed', 'upstream_failed');

-- name: resolve_superseded(dead_letter_ids, actor) -> rows
-- Resolve dead letters whose task succeeded without updating them, under their locks.
with done as (
  update holdfast.dead_letter d
  set state = 'resolved', disposition = 'retry_succeeded', actor = @actor, wants_sweep = false,
    disposition_reason = 'dead letter superseded by a success', changed_at = holdfast.instant()
  where d.dead_letter_id = any(@dead_letter_ids::bigint[]) and d.state in ('retry_requested', 'retrying')
  returning d.dead_letter_id, d.tenant_id, d.task_id, d.attempts
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select tenant_id, 'dead_letter.resolved', array_agg(task_id), array_agg(attempts)
  from done
  group by tenant_id
)
select dead_letter_id
from done;

-- name: exhaust_dead_letters(dead_letter_ids, actor) -> rows
-- Park dead letters that used all their dispatches, for an operator, under their locks.
with done as (
  update holdfast.dead_letter d
  set state = 'ignored', disposition = 'retry_exhausted', actor = @actor, wants_sweep = false,
    disposition_reason = format('automatic retries exhausted after %s dispatches; parked for an operator', d.dispatches),
    changed_at = holdfast.instant()
  where d.dead_letter_id = any(@dead_letter_ids::bigint[]) and d.state in ('retry_requested', 'retrying')
  returning d.dead_letter_id, d.tenant_id, d.task_id, d.attempts
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select tenant_id, 'dead_letter.exhausted', array_agg(task_id), array_agg(attempts)
  from done
  group by tenant_id
)
select dead_letter_id
from done;

-- name: revive_tasks(task_ids, tenant_id, actor, reason, priority?, is_retry) -> rows
-- Requeue failed plain tasks as a new generation with a full budget, or (@is_retry, an operator's retry) in their generation
-- with one more retry spent; attempts count on. The `ended` row is the guard: only one of several concurrent
-- transactions finds it. Nodes are requeued with their run. Rows are found by key and filtered under the lock: with
-- tenant and state in the condition, the planner may scan every failure of the tenant.
with found as materialized (
  select e.task_id, e.tenant_id, e.state, e.run_id
  from holdfast.ended e
  where e.task_id = any(@task_ids::bigint[])
  order by e.task_id
  for update of e
),
resting as materialized (
  select e.task_id
  from found e
  where e.tenant_id = @tenant_id and e.state = 'f' and e.run_id is null
),
deleted as (
  delete from holdfast.ended e
  where e.task_id = any(array(select task_id from resting))
  returning e.*
),
back as (
  insert into holdfast.live (
    task_id, tenant_id, lane_id, policy_id, attempt, priority, max_retries, max_losses, generation, state,
    retries, losses
  )
  select deleted.task_id, deleted.tenant_id, deleted.lane_id, deleted.policy_id, deleted.attempt,
    coalesce(@priority::smallint, b.priority, deleted.priority), deleted.max_retries, deleted.max_losses,
    deleted.generation + case when @is_retry then 0 else 1 end, 'q', case when @is_retry then deleted.retries + 1 else 0 end,
    case when @is_retry then deleted.losses else 0 end
  from deleted
  left join lateral (select b.priority from holdfast.body b where b.task_id = deleted.task_id limit 1) b on true
  returning task_id, attempt, lane_id, tenant_id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'task.revived', array_agg(task_id), array_agg(attempt),
    jsonb_build_object('actor', @actor::text, 'reason', @reason::text)
  from back
  group by tenant_id
)
select task_id, attempt, lane_id
from back;

-- name: request_dead_letter_retries(dead_letter_ids, actor, reason, dispatches_max) -> rows
-- Request a retry of dead letters. A parked one starts counting again at zero and leaves its campaign. Rows are locked
-- by id before the update, which alone would lock them in the order of its scan and could deadlock with a campaign.
-- Rows are found by key alone: `|| ''`, here and below, hides the state from the planner, which would scan the whole
-- state index when its statistics have no such dead letters.
with locked as materialized (
  select d.dead_letter_id
  from holdfast.dead_letter d
  where d.dead_letter_id = any(@dead_letter_ids::bigint[]) and d.state || '' in ('open', 'ignored')
    and 'retry' = any(d.recovery_options)
  order by d.dead_letter_id
  for update of d
),
asked as (
  update holdfast.dead_letter d
  set state = 'retry_requested', disposition = 'retry_requested', disposition_reason = @reason, actor = @actor,
    wants_sweep = true, changed_at = holdfast.instant(), campaign_id = null, dispatches_max = @dispatches_max,
    dispatches = case when d.state = 'ignored' then 0 else d.dispatches end,
    dispatched_at = case when d.state = 'ignored' then null else d.dispatched_at end,
    backoff_seconds = case when d.state = 'ignored' then null else d.backoff_seconds end
  where d.dead_letter_id = any(array(select dead_letter_id from locked))
  returning d.dead_letter_id, d.tenant_id, d.task_id, d.attempts
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'dead_letter.retry_requested', array_agg(task_id), array_agg(attempts),
    jsonb_build_object('actor', @actor::text, 'reason', @reason::text)
  from asked
  group by tenant_id
)
select dead_letter_id
from asked;

-- name: supersede_dead_letters(dead_letter_ids, actor, reason) -> nothing
-- Resolve dead letters of tasks that an operator retries: the next attempt replaces them, and its failure opens another
-- dead letter. Requires their locks.
with done as (
  update holdfast.dead_letter d
  set state = 'resolved', disposition = 'superseded', disposition_reason = @reason, actor = @actor, wants_sweep = false,
    hidden_until = null, changed_at = holdfast.instant()
  where d.dead_letter_id = any(@dead_letter_ids::bigint[]) and d.state || '' in ('open', 'retry_requested', 'retrying', 'ignored')
  returning d.dead_letter_id, d.tenant_id, d.task_id, d.attempts
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'dead_letter.resolved', array_agg(task_id), array_agg(attempts),
    jsonb_build_object('actor', @actor::text, 'reason', @reason::text, 'disposition', 'superseded')
  from done
  group by tenant_id
)
select dead_letter_id
from done;

-- name: spent_retries(run_id, node_nos, tenant_id) -> rows
-- Return the used budgets of the failed tasks of some nodes, under the locks of their dead letters.
select e.task_id, e.retries, e.losses
from holdfast.ended e
where e.run_id = @run_id and e.node_no = any(@node_nos::int[]) and e.tenant_id = @tenant_id and e.state = 'f';

-- name: carry_budgets(task_ids, retries, losses) -> nothing
-- Give retried tasks the budget that they had, less one retry, in the transaction that released them.
update holdfast.live t
set retries = least(b.retries + 1, t.max_retries), losses = least(b.losses, t.max_losses)
from unnest(@task_ids::bigint[], @retries::int[], @losses::int[]) as b (task_id, retries, losses)
where t.task_id = b.task_id
returning t.task_id;

-- name: mark_dispatched(dead_letter_ids, backoff_seconds, actor, reason, campaign_id?) -> values
-- Mark dead letters whose task or run was requeued: count one more dispatch and store its backoff. Requires their
-- locks, in the transaction that requeued. After the last allowed dispatch the sweep parks the dead letter without
-- waiting for its end. Rows are found by key alone: with a join, a planner whose statistics have no retrying dead
-- letter reads all of them and compares all pairs.
with sent as (
  update holdfast.dead_letter d
  set state = 'retrying', dispatches = d.dispatches + 1, dispatched_at = holdfast.instant(),
    backoff_seconds = (@backoff_seconds::double precision[])[array_position(@dead_letter_ids::bigint[], d.dead_letter_id)],
    wants_sweep = d.dispatches + 1 >= d.dispatches_max, hidden_until = null, disposition = 'retry_dispatched', disposition_reason = @reason, actor = @actor,
    campaign_id = @campaign_id, changed_at = holdfast.instant()
  where d.dead_letter_id = any(@dead_letter_ids::bigint[]) and d.state || '' in ('retry_requested', 'retrying')
  returning d.dead_letter_id, d.tenant_id, d.task_id, d.attempts, d.source_id, d.run_id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'stateful_dead_letter_retry_requeued', array_agg(task_id), array_agg(attempts),
    jsonb_build_object(
      'actor', @actor::text, 'reason', @reason::text, 'outcome', 'requeued_for_dead_letter_retry', 'campaign_id', @campaign_id::int,
      'dead_letters', jsonb_agg(jsonb_build_object(
        'dead_letter_id', dead_letter_id, 'source_id', source_id, 'attempts', attempts, 'run_id', run_id
      ))
    )
  from sent
  group by tenant_id
)
select dead_letter_id
from sent;

-- name: request_and_dispatch_dead_letters(dead_letter_ids, backoff_seconds, actor, reason, campaign_id?) -> values
-- Request and dispatch dead letters: `request_dead_letter_retries` and `mark_dispatched` in one statement, with the events of both.
-- Changing a row twice in one transaction costs more than twice as much, because the foreign key to its tenant is
-- checked again for a row of the same transaction. Requires their locks, in the transaction that requeued.
with sent as (
  update holdfast.dead_letter d
  set state = 'retrying', dispatches = case when d.state = 'ignored' then 0 else d.dispatches end + 1,
    dispatched_at = holdfast.instant(),
    backoff_seconds = (@backoff_seconds::double precision[])[array_position(@dead_letter_ids::bigint[], d.dead_letter_id)],
    wants_sweep = case when d.state = 'ignored' then 0 else d.dispatches end + 1 >= d.dispatches_max, hidden_until = null,
    disposition = 'retry_dispatched', disposition_reason = @reason, actor = @actor, campaign_id = @campaign_id, changed_at = holdfast.instant()
  where d.dead_letter_id = any(@dead_letter_ids::bigint[]) and d.state || '' in ('open', 'ignored')
    and 'retry' = any(d.recovery_options)
  returning d.dead_letter_id, d.tenant_id, d.task_id, d.attempts, d.source_id, d.run_id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'dead_letter.retry_requested', array_agg(task_id), array_agg(attempts),
    jsonb_build_object('actor', @actor::text, 'reason', @reason::text)
  from sent
  group by tenant_id
  union all
  select tenant_id, 'stateful_dead_letter_retry_requeued', array_agg(task_id), array_agg(attempts),
    jsonb_build_object(
      'actor', @actor::text, 'reason', @reason::text, 'outcome', 'requeued_for_dead_letter_retry', 'campaign_id', @campaign_id::int,
      'dead_letters', jsonb_agg(jsonb_build_object(
        'dead_letter_id', dead_letter_id, 'source_id', source_id, 'attempts', attempts, 'run_id', run_id
      ))
    )
  from sent
  group by tenant_id
)
select dead_letter_id
from sent;

-- name: take_dead_letter(tenant_id, visibility_timeout_seconds) -> row?
-- Take the oldest visible open dead letter and hide it for a while, so that one worker at a time has it. Dead letters
-- of paused runs wait with them; those of canceled runs cannot be re-driven.
update holdfast.dead_letter d
set hidden_until = holdfast.instant() + make_interval(secs => @visibility_timeout_seconds)
where d.dead_letter_id = (
  select o.dead_letter_id
  from holdfast.dead_letter o
  where o.tenant_id = @tenant_id and o.state = 'open' and o.campaign_id is null and 'retry' = any(o.recovery_options)
    and (o.hidden_until is null or o.hidden_until <= holdfast.instant())
    and not exists (
      select from holdfast.run r
      where r.run_id = o.run_id and (r.canceled_at is not null or (r.state = 'o' and r.paused_at is not null))
    )
  order by o.dead_letter_id
  limit 1
  for update of o skip locked
)
returning d.dead_letter_id, d.task_id;

-- name: return_dead_letter(dead_letter_id) -> nothing
-- Make a dead letter visible again that this worker had taken.
update holdfast.dead_letter d
set hidden_until = null
where d.dead_letter_id = @dead_letter_id and d.state = 'open'
returning d.dead_letter_id;

-- name: lease_dead_task(task_id, holder, visibility_timeout_seconds) -> row?
-- Take the lease on a dead task, unless another worker has it and it has not expired.
insert into holdfast.dead_lease as l (task_id, holder, expires_at)
values (@task_id, @holder, holdfast.instant() + make_interval(secs => @visibility_timeout_seconds))
on conflict (task_id) do update
set holder = excluded.holder, expires_at = excluded.expires_at
where l.expires_at <= holdfast.instant() or l.holder = excluded.holder
returning l.task_id;

-- name: release_dead_task(task_id, worker_id) -> nothing
-- Release the lease, if this worker still has it.
delete from holdfast.dead_lease l
where l.task_id = @task_id and l.holder = @worker_id
returning l.task_id;

-- name: delete_old_dead_letters(seconds, limit) -> value
-- Delete a bounded batch of dead letters that were resolved before the retention period, unless their task is still
-- ended as failed or canceled; and expired leases on dead tasks. Returns how many dead letters were deleted.
with lapsed as (
  delete from holdfast.dead_lease l
  where l.expires_at <= holdfast.instant() - interval '1 hour'
),
deleted as (
  delete from holdfast.dead_letter d
  where d.dead_letter_id in (
    select o.dead_letter_id
    from holdfast.dead_letter o
    where o.state = 'resolved' and o.changed_at < holdfast.instant() - make_interval(secs => @seconds::double precision * 86400)
      and not exists (select from holdfast.ended e where e.task_id = o.task_id)
    order by o.changed_at
    limit @limit
  )
  returning d.dead_letter_id
)
select count(*)
from deleted;
