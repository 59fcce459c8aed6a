-- name: find_lanes(tenant_id, name?, action?) -> rows
-- Return the lanes of a queue, of an action, or of both.
select l.lane_id
from holdfast.lane l
join holdfast.queue q on q.queue_id = l.queue_id
where l.tenant_id = @tenant_id
  and (@name::text is null or q.name = @name)
  and (@action::text is null or l.action = @action);

-- name: show_task(task_id, tenant_id) -> row?
-- nullable: retries, losses, started_at, ended_at, due_at, lease_expires_at, cancel_at, actor, reason, key, tags,
--   original_task_id, input, output, run_id, item_no, is_past
-- null with run_id: node_no, snapshot_id
-- Return one task in full. A live row wins over older ends; a completion counts only in the current generation of its
-- node.
with place as materialized (
  select w.run_id, w.node_no, w.item_no, r.snapshot_id, r.created_at, r.tags, s.lane_ids[w.node_no + 1] as lane_id,
    s.policy_ids[w.node_no + 1] as policy_id, coalesce(r.priority, s.priorities[w.node_no + 1]) as priority,
    coalesce(n.generation, 1) as generation,
    w.item_no is not null and n.items_first is distinct from @task_id::bigint - w.item_no as is_past
  from holdfast.locate_task(@task_id) w
  join holdfast.run r on r.run_id = w.run_id and r.tenant_id = @tenant_id
  join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
  left join holdfast.node n on n.run_id = w.run_id and n.node_no = w.node_no
)
select t.*, w.run_id, w.node_no, w.item_no, w.snapshot_id, w.is_past, holdfast.instant() as at
from (
  select 1 as rank, t.task_id, case t.state when 'r' then 'running' when 'w'
      then case when t.is_retrying then 'retrying' else 'queued' end else 'queued' end as state,
    t.lane_id, t.policy_id, t.attempt, t.retries, t.losses, t.max_retries, t.max_losses, t.generation, t.priority,
    coalesce(b.created_at, w.created_at) as created_at, t.started_at, null::timestamptz as ended_at, t.due_at,
    t.is_retrying, t.lease_expires_at, t.cancel_at, t.cancel_actor as actor, t.cancel_reason as reason, b.key,
    coalesce(b.tags, w.tags) as tags, b.original_task_id, b.input, null::bytea as output
  from holdfast.live t
  left join holdfast.body b on b.task_id = t.task_id
  left join place w on true
  where t.task_id = @task_id and t.tenant_id = @tenant_id
  union all
  select 2, e.task_id, case e.state when 'f' then 'failed' else 'canceled' end, e.lane_id, e.policy_id, e.attempt, e.retries,
    e.losses, e.max_retries, e.max_losses, e.generation, e.priority, coalesce(w.created_at, e.created_at), null, e.ended_at,
    null, false, null, null, e.actor, e.reason, e.key, coalesce(e.tags, w.tags),
    (select b.original_task_id from holdfast.body b where b.task_id = e.task_id), e.input, null
  from holdfast.ended e
  left join place w on true
  where e.task_id = @task_id and e.tenant_id = @tenant_id
  union all
  select 3, a.task_id, 'completed', coalesce(b.lane_id, w.lane_id), p.policy_id, a.attempt, null, null, p.max_retries,
    p.max_losses, a.generation, coalesce(b.priority, w.priority), coalesce(b.created_at, w.created_at), a.started_at,
    a.ended_at, null, false, null, null, null, null, b.key, coalesce(b.tags, w.tags), b.original_task_id, b.input, a.output
  from holdfast.attempt a
  left join holdfast.body b on b.task_id = a.task_id
  left join place w on true
  join holdfast.policy p on p.policy_id = coalesce(b.policy_id, w.policy_id)
  where a.task_id = @task_id and a.tenant_id = @tenant_id and a.state = 'c'
    and (b.task_id is not null or w.item_no is not null or a.generation = w.generation)
  union all
  select 4, n.task_id, n.state, n.lane_id, n.policy_id, n.attempt, null, null, p.max_retries, p.max_losses, n.generation,
    w.priority, w.created_at, null, null, null, false, null, null, null, null, null, w.tags, null, null, m.output
  from place w
  cross join lateral (
    select n.*
    from holdfast.nodes_of(w.run_id) n
    where n.node_no = w.node_no and n.is_taskless and w.item_no is null
    limit 1
  ) n
  left join holdfast.policy p on p.policy_id = n.policy_id
  left join holdfast.node m on m.run_id = w.run_id and m.node_no = w.node_no
  union all
  select 5, f.task_id, 'failed', w.lane_id, w.policy_id, f.attempt, null, null, p.max_retries, p.max_losses, f.generation,
    w.priority, w.created_at, f.started_at, f.ended_at, null, false, null, null, null, null, null, w.tags, null, null, null
  from place w
  cross join lateral (
    select f.*
    from holdfast.failure f
    where f.task_id = @task_id and w.is_past
    order by f.attempt desc
    limit 1
  ) f
  join holdfast.policy p on p.policy_id = w.policy_id
) t
left join place w on true
order by t.rank
limit 1;

-- name: show_attempts(task_id, tenant_id) -> rows
-- nullable: ended_at, code, type, message, traceback, decision, reason, rule, sentence, retry_at, failure_class
-- Return every attempt of a task, in order, the running one last.
select a.attempt, case a.state when 'c' then 'completed' when 'x' then 'canceled' else 'released' end as state, w.name as worker,
  holdfast.dispatched_at(a.task_id, a.attempt, a.started_at) as dispatched_at, a.started_at, a.ended_at, null::text as code, null::text as type, null::text as message, null::text as traceback,
  null::text as decision, null::text as reason, null::text as rule, null::text as sentence, null::timestamptz as retry_at, null::text as failure_class
from holdfast.attempt a
left join holdfast.worker w on w.worker_id = a.worker_id
where a.task_id = @task_id and a.tenant_id = @tenant_id
union all
select f.attempt, case f.state when 'f' then 'failed' when 't' then 'timed_out' else 'lost' end, w.name,
  holdfast.dispatched_at(f.task_id, f.attempt, f.started_at), f.started_at, f.ended_at, f.code, f.type, f.message, f.traceback, f.decision, f.reason, f.rule, f.sentence, f.retry_at, coalesce(f.class, f.reason)
from holdfast.failure f
left join holdfast.worker w on w.worker_id = f.worker_id
where f.task_id = @task_id and f.tenant_id = @tenant_id
union all
select t.attempt, 'running', w.name, holdfast.dispatched_at(t.task_id, t.attempt, t.started_at), t.started_at, null, null, null, null, null, null, null, null, null, null, null
from holdfast.live t
left join holdfast.worker w on w.worker_id = t.worker_id
where t.task_id = @task_id and t.tenant_id = @tenant_id and t.state in ('r', 'v')
order by attempt;

-- name: task_copies(task_id, tenant_id, limit) -> rows
-- Return the newest copies of a task.
select b.task_id::text as task_id
from holdfast.body b
where b.original_task_id = @task_id and b.tenant_id = @tenant_id
order by b.task_id desc
limit @limit;

-- name: queue_rows(tenant_id, name?) -> rows
-- nullable: paused_at, paused_by, paused_reason, max_running, starts_per_second, oldest_seconds
-- Return the queues of a tenant with their pause and limits.
select q.queue_id, q.name, q.paused_at, q.paused_by, q.paused_reason, q.max_running, q.starts_per_second,
  (
    select count(*)::int
    from holdfast.worker w
    where w.state = 'active' and w.tenant_id = q.tenant_id and (w.queues is null or q.name = any(w.queues))
      and exists (select from holdfast.lane l where l.queue_id = q.queue_id and l.action = any(w.actions))
  ) as workers,
  (
    select extract(epoch from holdfast.instant() - min(coalesce(
      (select b.created_at from holdfast.body b where b.task_id = head.task_id),
      (select holdfast.ready_since(head.run_id, head.node_no))
    )))::double precision
    from holdfast.lane l
    cross join lateral (
      select t.task_id, t.run_id, t.node_no
      from holdfast.live t
      where t.state = 'q' and t.lane_id = l.lane_id
      order by t.priority, t.task_id
      limit 1
    ) head
    where l.queue_id = q.queue_id
  ) as oldest_seconds
from holdfast.queue q
where q.tenant_id = @tenant_id and (@name::text is null or q.name = @name)
order by q.name;

-- name: list_actions(tenant_id, name?) -> rows
-- nullable: timeout_seconds, breaker
-- Return the declared actions, with the number of live workers that can run them.
select a.name, a.queue, a.version, a.seen_at, p.max_retries, p.max_retries + 1 as max_attempts, p.max_losses,
  p.timeout_seconds, p.content::text as policy,
  case when b.state = 'c' then 'closed' when b.state = 'h' or b.trial_at <= holdfast.instant() then 'half_open'
    when b.state = 'o' then 'open' end as breaker,
  (
    select count(*)::int
    from holdfast.worker w
    where w.state = 'active' and w.tenant_id = a.tenant_id and a.name = any(w.actions)
      and (w.queues is null or a.queue = any(w.queues))
  ) as workers
from holdfast.action a
join holdfast.policy p on p.policy_id = a.policy_id
left join holdfast.breaker b on b.tenant_id = a.tenant_id and b.action = a.name
where a.tenant_id = @tenant_id and (@name::text is null or a.name = @name)
order by a.name;

-- name: show_worker(worker_id, limit) -> rows
-- Return the running tasks of one worker.
select t.task_id::text as task_id, l.action, q.name as queue, t.attempt, t.started_at, t.lease_expires_at,
  t.cancel_at is not null as is_canceling
from holdfast.live t
join holdfast.lane l on l.lane_id = t.lane_id
join holdfast.queue q on q.queue_id = l.queue_id
where t.state = 'r' and t.due_at is null and t.worker_id = @worker_id
  and t.tenant_id = (select w.tenant_id from holdfast.worker w where w.worker_id = @worker_id)
order by t.started_at
limit @limit;

-- name: find_worker(worker_id, tenant_id?) -> row?
-- nullable: queues, ended_at, probe_url, checked_at, is_healthy, failures, detail
-- Return one worker by its id, of one tenant or of any.
select w.worker_id, w.name, w.version, w.state, w.slots, w.queues, w.actions, w.started_at, w.beat_at, w.ended_at,
  w.health::text as health, extract(epoch from holdfast.instant() - w.beat_at)::double precision as beat_age_seconds,
  (
    select count(*)::int
    from holdfast.live t
    where t.state = 'r' and t.due_at is null and t.tenant_id = w.tenant_id and t.worker_id = w.worker_id
  ) as running,
  w.labels->>'probe_url' as probe_url, p.checked_at, p.is_healthy, p.failures, p.detail
from holdfast.worker w
left join holdfast.probe p on p.worker_id = w.worker_id
where w.worker_id = @worker_id and (@tenant_id::int is null or w.tenant_id = @tenant_id);

-- name: throughput_counts() -> row
-- Return two counters whose growth gives the rates: ids drawn, and attempts finished according to the server's
-- statistics.
select (select last_value from holdfast.task_id) % 10000000000 as enqueued,
  (
    select coalesce(sum(n_tup_ins), 0)::bigint
    from pg_stat_user_tables
    where schemaname = 'holdfast' and relname like 'attempt\_%'
  ) as finished;
