-- The logical model, for people, the dashboard and anyone's SQL. Only the store knows the rest.
create view holdfast.tasks with (security_invoker = true) as
select t.task_id::text as task_id, n.name as tenant, q.name as queue, l.action,
  case t.state when 'r' then 'running' when 'w' then case when t.is_retrying then 'failed' else 'queued' end else 'queued' end as state,
  t.attempt, t.retries as retry_count, t.max_retries, t.max_retries + 1 as max_attempts, t.losses as loss_count,
  t.max_losses, t.generation, t.priority, b.created_at, t.started_at, null::timestamptz as ended_at,
  case when t.is_retrying then t.due_at end as next_retry_at,
  case when not t.is_retrying then t.due_at end as due_at,
  t.worker_id, t.lease_expires_at, t.cancel_at, b.key, b.tags, b.original_task_id::text as original_execution,
  (select f.reason from holdfast.failure f where f.task_id = t.task_id order by f.attempt desc limit 1) as retry_reason,
  b.input
from holdfast.live t
join holdfast.lane l on l.lane_id = t.lane_id
join holdfast.queue q on q.queue_id = l.queue_id
join holdfast.tenant n on n.tenant_id = t.tenant_id
join holdfast.body b on b.task_id = t.task_id
union all
select a.task_id::text, n.name, q.name, l.action, 'completed', a.attempt,
  (select count(*)::smallint from holdfast.failure f where f.task_id = a.task_id and f.generation = a.generation and f.state <> 'l'),
  p.max_retries, p.max_retries + 1,
  (select count(*)::smallint from holdfast.failure f where f.task_id = a.task_id and f.generation = a.generation and f.state = 'l'),
  p.max_losses, a.generation, b.priority, b.created_at, a.started_at, a.ended_at, null, null, a.worker_id, null, null, b.key, b.tags,
  b.original_task_id::text,
  (select f.reason from holdfast.failure f where f.task_id = a.task_id order by f.attempt desc limit 1),
  b.input
from holdfast.attempt a
join holdfast.body b on b.task_id = a.task_id
join holdfast.lane l on l.lane_id = b.lane_id
join holdfast.queue q on q.queue_id = l.queue_id
join holdfast.tenant n on n.tenant_id = a.tenant_id
join holdfast.policy p on p.policy_id = b.policy_id
where a.state = 'c'
union all
select e.task_id::text, n.name, q.name, l.action, case e.state when 'f' then 'failed' else 'canceled' end, e.attempt,
  e.retries, e.max_retries, e.max_retries + 1, e.losses, e.max_losses, e.generation, e.priority, e.created_at, null,
  e.ended_at, null, null, null, null, null, e.key, e.tags, null,
  (select f.reason from holdfast.failure f where f.task_id = e.task_id order by f.attempt desc limit 1),
  e.input
from holdfast.ended e
join holdfast.lane l on l.lane_id = e.lane_id
join holdfast.queue q on q.queue_id = l.queue_id
join holdfast.tenant n on n.tenant_id = e.tenant_id;

create view holdfast.attempts with (security_invoker = true) as
select t.task_id::text as task_id, t.attempt, 'running' as state, t.worker_id, t.lease_token, t.started_at,
  null::timestamptz as ended_at, null::text as code, null::text as type, null::text as message, null::text as traceback,
  null::text as decision, null::text as reason, null::text as rule, null::text as sentence, null::timestamptz as retry_at,
  null::bytea as output
from holdfast.live t
where t.state in ('r', 'v')
union all
select a.task_id::text, a.attempt, case a.state when 'c' then 'completed' when 'x' then 'canceled' else 'released' end,
  a.worker_id, a.lease_token, a.started_at, a.ended_at, null, null, null, null, null, null, null, null, null, a.output
from holdfast.attempt a
union all
select f.task_id::text, f.attempt, case f.state when 'f' then 'failed' when 't' then 'timed_out' else 'lost' end,
  f.worker_id, f.lease_token, f.started_at, f.ended_at, f.code, f.type, f.message, f.traceback, f.decision, f.reason,
  f.rule, f.sentence, f.retry_at, null
from holdfast.failure f;
