-- What others read and call from SQL says and refuses the same as Python does.

-- As before, and tasks that failed or were canceled say what they are a copy of, too.
create or replace view holdfast.tasks with (security_invoker = true) as
select t.task_id::text as task_id, n.name as tenant, q.name as queue, l.action,
  case t.state when 'r' then 'running' when 'w' then case when t.is_retrying then 'failed' else 'queued' end else 'queued' end as state,
  t.attempt, t.retries as retry_count, t.max_retries, t.max_retries + 1 as max_attempts, t.losses as loss_count,
  t.max_losses, t.generation, t.priority, coalesce(b.created_at, r.created_at) as created_at, t.started_at,
  null::timestamptz as ended_at,
  case when t.is_retrying then t.due_at end as next_retry_at,
  case when not t.is_retrying then t.due_at end as due_at,
  t.worker_id, t.lease_expires_at, t.cancel_at, b.key, coalesce(b.tags, r.tags) as tags,
  b.original_task_id::text as original_execution,
  (select f.reason from holdfast.failure f where f.task_id = t.task_id order by f.attempt desc limit 1) as retry_reason,
  b.input, t.run_id::text as run_id, t.node_no
from holdfast.live t
join holdfast.lane l on l.lane_id = t.lane_id
join holdfast.queue q on q.queue_id = l.queue_id
join holdfast.tenant n on n.tenant_id = t.tenant_id
left join holdfast.body b on b.task_id = t.task_id
left join holdfast.run r on r.run_id = t.run_id
union all
select a.task_id::text, n.name, q.name, l.action, 'completed', a.attempt,
  (select count(*)::smallint from holdfast.failure f where f.task_id = a.task_id and f.generation = a.generation and f.state <> 'l'),
  p.max_retries, p.max_retries + 1,
  (select count(*)::smallint from holdfast.failure f where f.task_id = a.task_id and f.generation = a.generation and f.state = 'l'),
  p.max_losses, a.generation, coalesce(b.priority, w.priority), coalesce(b.created_at, w.created_at), a.started_at,
  a.ended_at, null, null, a.worker_id, null, null, b.key, coalesce(b.tags, w.tags), b.original_task_id::text,
  (select f.reason from holdfast.failure f where f.task_id = a.task_id order by f.attempt desc limit 1),
  b.input, w.run_id::text, w.node_no
from holdfast.attempt a
left join holdfast.body b on b.task_id = a.task_id
left join lateral (
  select w.run_id, w.node_no, w.item_no, r.created_at, r.tags, coalesce(r.priority, s.priorities[w.node_no + 1]) as priority,
    s.lane_ids[w.node_no + 1] as lane_id, s.policy_ids[w.node_no + 1] as policy_id, coalesce(m.generation, 1) as generation
  from holdfast.place(a.task_id) w
  join holdfast.run r on r.run_id = w.run_id
  join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
  left join holdfast.node m on m.run_id = w.run_id and m.node_no = w.node_no
  where b.task_id is null
) w on true
join holdfast.lane l on l.lane_id = coalesce(b.lane_id, w.lane_id)
join holdfast.queue q on q.queue_id = l.queue_id
join holdfast.tenant n on n.tenant_id = a.tenant_id
join holdfast.policy p on p.policy_id = coalesce(b.policy_id, w.policy_id)
where a.state = 'c' and (b.task_id is not null or w.item_no is not null or a.generation = w.generation)
union all
select e.task_id::text, n.name, q.name, l.action, case e.state when 'f' then 'failed' else 'canceled' end, e.attempt,
  e.retries, e.max_retries, e.max_retries + 1, e.losses, e.max_losses, e.generation, e.priority,
  coalesce(r.created_at, e.created_at), null, e.ended_at, null, null, null, null, null, e.key, coalesce(e.tags, r.tags),
  (select b.original_task_id::text from holdfast.body b where b.task_id = e.task_id),
  (select f.reason from holdfast.failure f where f.task_id = e.task_id order by f.attempt desc limit 1),
  e.input, e.run_id::text, e.node_no
from holdfast.ended e
join holdfast.lane l on l.lane_id = e.lane_id
join holdfast.queue q on q.queue_id = l.queue_id
join holdfast.tenant n on n.tenant_id = e.tenant_id
left join holdfast.run r on r.run_id = e.run_id
union all
select s.task_id::text, n.name, q.name, l.action, s.state, s.attempt, 0::smallint, coalesce(p.max_retries, 0::smallint),
  coalesce(p.max_retries, 0) + 1, 0::smallint, coalesce(p.max_losses, 0::smallint), s.generation,
  coalesce(r.priority, c.priorities[s.node_no + 1]), r.created_at, s.started_at, s.ended_at, null, null, null, null, null,
  null, r.tags, null, null, null, r.run_id::text, s.node_no
from holdfast.run r
join holdfast.tenant n on n.tenant_id = r.tenant_id
join holdfast.snapshot c on c.snapshot_id = r.snapshot_id
join lateral holdfast.nodes_of(r.run_id) s on s.is_bare
left join holdfast.lane l on l.lane_id = s.lane_id
left join holdfast.queue q on q.queue_id = l.queue_id
left join holdfast.policy p on p.policy_id = s.policy_id;
