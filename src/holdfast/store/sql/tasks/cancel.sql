-- name: cancel(task_ids, tenant_id, grace_seconds, reason, actor) -> rows
-- nullable: run_id, worker_id
-- null with run_id: node_no
-- Cancel tasks: unstarted ones end at once, running ones are asked to stop and are ended by force after the grace
-- period. Only the locked row decides: what the statement read before it waited for the lock may be out of date. The
-- lock is NO KEY UPDATE, so that it does not wait for an attempt that asserts its lease in a transaction of its own:
-- that one is only asked to stop, and the other rows locked here would miss their heartbeats meanwhile.
with locked as materialized (
  select t.task_id, t.state, t.is_retrying, t.cancel_at is not null as is_canceling
  from holdfast.live t
  where t.task_id = any(@task_ids::bigint[]) and t.tenant_id = @tenant_id
  order by t.task_id
  for no key update of t
),
asked as (
  update holdfast.live t
  set cancel_at = least(t.cancel_at, holdfast.instant() + make_interval(secs => @grace_seconds)),
    cancel_actor = coalesce(t.cancel_actor, @actor), cancel_reason = coalesce(t.cancel_reason, @reason)
  where t.task_id = any(array(select task_id from locked where state = 'r'))
  returning t.task_id, t.worker_id
),
deleted as (
  delete from holdfast.live t
  where t.task_id = any(array(select task_id from locked where state <> 'r'))
  returning t.*
),
ended_tasks as (
  insert into holdfast.ended (
    task_id, tenant_id, lane_id, policy_id, attempt, priority, max_retries, max_losses, retries, losses, generation,
    state, created_at, ended_at, reason, actor, input, tags, key, run_id, node_no
  )
  select deleted.task_id, deleted.tenant_id, deleted.lane_id, deleted.policy_id, deleted.attempt, deleted.priority, deleted.max_retries,
    deleted.max_losses, deleted.retries, deleted.losses, deleted.generation, 'x', coalesce(b.created_at, holdfast.instant()),
    holdfast.instant(), @reason, @actor, b.input, b.tags, b.key, deleted.run_id, deleted.node_no
  from deleted
  left join lateral (select * from holdfast.body b where b.task_id = deleted.task_id limit 1) b on true
),
recorded as (
  insert into holdfast.attempt (
    task_id, started_at, ended_at, attempt, tenant_id, worker_id, generation, state, lease_token
  )
  select task_id, started_at, holdfast.instant(), attempt, tenant_id, worker_id, generation, 'x', lease_token
  from deleted
  where state = 'v'
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select tenant_id, 'task.canceled', array_agg(task_id), array_agg(attempt)
  from deleted
  group by tenant_id
)
select deleted.task_id, 'canceled' as state, deleted.is_awaited, deleted.run_id, deleted.node_no, locked.state::text as was,
  locked.is_retrying, locked.is_canceling, null::bigint as worker_id
from deleted
join locked on locked.task_id = deleted.task_id
union all
select asked.task_id, 'canceling', false, null, null, locked.state::text, locked.is_retrying, locked.is_canceling,
  asked.worker_id
from asked
join locked on locked.task_id = asked.task_id;

-- name: retry_now(task_id, tenant_id) -> row?
-- Make a waiting retry claimable at once.
update holdfast.live t
set state = 'q', due_at = null, is_retrying = false
where t.task_id = @task_id and t.tenant_id = @tenant_id and t.state = 'w' and t.is_retrying
returning t.task_id, t.attempt, t.lane_id, t.generation;
