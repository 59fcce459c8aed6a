-- name: list_tasks
-- A page of tasks, newest first, before an id. Each branch reads at most a page; one whose states were not asked for
-- reads nothing. Names, times and last failures are fetched for the rows shown, never for those passed over.
with page as materialized (
  select *
  from (
    (
      select t.task_id, 'queued' as state
      from holdfast.live t
      where ($2::text[] is null or 'queued' = any($2))
        and t.state = 'q' and t.tenant_id = $1 and t.task_id < $5
        and ($3::int[] is null or t.lane_id = any($3))
        and ($4::text is null or exists (select from holdfast.body b where b.task_id = t.task_id and $4 = any(b.tags)))
      order by t.task_id desc
      limit $6
    )
    union all
    (
      select t.task_id, case when t.state = 'r' then 'running' when t.is_retrying then 'retrying' else 'queued' end
      from holdfast.live t
      where ($2::text[] is null or $2 && array['queued', 'running', 'retrying'])
        and t.state <> 'q' and t.tenant_id = $1 and t.task_id < $5
        and ($2::text[] is null
          or case when t.state = 'r' then 'running' when t.is_retrying then 'retrying' else 'queued' end = any($2))
        and ($3::int[] is null or t.lane_id = any($3))
        and ($4::text is null or exists (select from holdfast.body b where b.task_id = t.task_id and $4 = any(b.tags)))
      order by t.task_id desc
      limit $6
    )
    union all
    (
      select e.task_id, case e.state when 'f' then 'failed' else 'canceled' end
      from holdfast.ended e
      where ($2::text[] is null or $2 && array['failed', 'canceled'])
        and e.tenant_id = $1 and e.task_id < $5
        and ($2::text[] is null or case e.state when 'f' then 'failed' else 'canceled' end = any($2))
        and ($3::int[] is null or e.lane_id = any($3))
        and ($4::text is null or $4 = any(e.tags))
      order by e.task_id desc
      limit $6
    )
    union all
    (
      select a.task_id, 'completed'
      from holdfast.attempt a
      join holdfast.body b on b.task_id = a.task_id
      where ($2::text[] is null or 'completed' = any($2))
        and a.state = 'c' and a.tenant_id = $1 and a.task_id < $5
        and ($3::int[] is null or b.lane_id = any($3))
        and ($4::text is null or $4 = any(b.tags))
      order by a.task_id desc
      limit $6
    )
  ) found
  order by task_id desc
  limit $6
)
select page.task_id::text as task_id, page.state, l.action, q.name as queue,
  coalesce(t.attempt, e.attempt, a.attempt) as attempt, coalesce(t.max_retries, e.max_retries, p.max_retries) + 1 as max_attempts,
  coalesce(t.priority, e.priority, b.priority) as priority, coalesce(b.tags, e.tags, '{}') as tags, coalesce(b.key, e.key) as key,
  coalesce(b.created_at, e.created_at) as created_at, coalesce(t.started_at, a.started_at) as started_at,
  coalesce(e.ended_at, a.ended_at) as ended_at,
  case when not t.is_retrying then t.due_at end as due_at, case when t.is_retrying then t.due_at end as next_retry_at,
  w.name as worker, f.code, f.type, f.message, holdfast.instant() as at
from page
left join holdfast.live t on t.task_id = page.task_id and page.state in ('queued', 'running', 'retrying')
left join holdfast.ended e on e.task_id = page.task_id and page.state in ('failed', 'canceled')
left join holdfast.attempt a on a.task_id = page.task_id and a.state = 'c' and page.state = 'completed'
left join lateral (select * from holdfast.body b where b.task_id = page.task_id limit 1) b on true
join holdfast.lane l on l.lane_id = coalesce(t.lane_id, e.lane_id, b.lane_id)
join holdfast.queue q on q.queue_id = l.queue_id
join holdfast.policy p on p.policy_id = coalesce(t.policy_id, e.policy_id, b.policy_id)
left join holdfast.worker w on w.worker_id = coalesce(t.worker_id, a.worker_id)
left join lateral (
  select f.code, f.type, f.message
  from holdfast.failure f
  where f.task_id = page.task_id
  order by f.attempt desc
  limit 1
) f on true
order by page.task_id desc;

-- name: find_lanes
-- The lanes of a queue, of an action, or of both.
select l.lane_id
from holdfast.lane l
join holdfast.queue q on q.queue_id = l.queue_id
where l.tenant_id = $1
  and ($2::text is null or q.name = $2)
  and ($3::text is null or l.action = $3);

-- name: show_task
-- One task in full. A live row wins over older endings.
select t.*
from (
  select 1 as rank, t.task_id, case t.state when 'r' then 'running' when 'w'
      then case when t.is_retrying then 'retrying' else 'queued' end else 'queued' end as state,
    t.lane_id, t.policy_id, t.attempt, t.retries, t.losses, t.max_retries, t.max_losses, t.generation, t.priority, b.created_at,
    t.started_at, null::timestamptz as ended_at, t.due_at, t.is_retrying, t.lease_expires_at, t.cancel_at,
    t.cancel_actor as actor, t.cancel_reason as reason, b.key, b.tags, b.original_task_id, b.input, null::bytea as output
  from holdfast.live t
  join holdfast.body b on b.task_id = t.task_id
  where t.task_id = $1 and t.tenant_id = $2
  union all
  select 2, e.task_id, case e.state when 'f' then 'failed' else 'canceled' end, e.lane_id, e.policy_id, e.attempt, e.retries,
    e.losses, e.max_retries, e.max_losses, e.generation, e.priority, e.created_at, null, e.ended_at, null, false, null, null,
    e.actor, e.reason, e.key, e.tags, null, e.input, null
  from holdfast.ended e
  where e.task_id = $1 and e.tenant_id = $2
  union all
  select 3, a.task_id, 'completed', b.lane_id, b.policy_id, a.attempt, null, null, p.max_retries, p.max_losses,
    a.generation, b.priority, b.created_at, a.started_at, a.ended_at, null, false, null, null, null, null, b.key, b.tags,
    b.original_task_id, b.input,
    a.output
  from holdfast.attempt a
  join holdfast.body b on b.task_id = a.task_id
  join holdfast.policy p on p.policy_id = b.policy_id
  where a.task_id = $1 and a.tenant_id = $2 and a.state = 'c'
) t
order by t.rank
limit 1;

-- name: show_attempts
-- Every attempt of a task, in order, the running one last.
select a.attempt, case a.state when 'c' then 'completed' when 'x' then 'canceled' else 'released' end as state, w.name as worker,
  a.started_at, a.ended_at, null::text as code, null::text as type, null::text as message, null::text as traceback,
  null::text as decision, null::text as reason, null::text as rule, null::text as sentence, null::timestamptz as retry_at, null::text as failure_class
from holdfast.attempt a
left join holdfast.worker w on w.worker_id = a.worker_id
where a.task_id = $1 and a.tenant_id = $2
union all
select f.attempt, case f.state when 'f' then 'failed' when 't' then 'timed_out' else 'lost' end, w.name, f.started_at,
  f.ended_at, f.code, f.type, f.message, f.traceback, f.decision, f.reason, f.rule, f.sentence, f.retry_at, coalesce(f.class, f.reason)
from holdfast.failure f
left join holdfast.worker w on w.worker_id = f.worker_id
where f.task_id = $1 and f.tenant_id = $2
union all
select t.attempt, 'running', w.name, t.started_at, null, null, null, null, null, null, null, null, null, null, null
from holdfast.live t
left join holdfast.worker w on w.worker_id = t.worker_id
where t.task_id = $1 and t.tenant_id = $2 and t.state in ('r', 'v')
order by attempt;

-- name: queue_rows
-- The queues of a tenant with their pause and limits.
select q.queue_id, q.name, q.paused_at, q.paused_by, q.paused_reason, q.max_running, q.starts_per_second,
  (
    select count(*)::int
    from holdfast.worker w
    where w.state = 'active' and (w.queues is null or q.name = any(w.queues))
      and exists (select from holdfast.lane l where l.queue_id = q.queue_id and l.action = any(w.actions))
  ) as workers,
  (
    select extract(epoch from holdfast.instant() - min(b.created_at))::double precision
    from holdfast.lane l
    cross join lateral (
      select t.task_id
      from holdfast.live t
      where t.state = 'q' and t.lane_id = l.lane_id
      order by t.priority, t.task_id
      limit 1
    ) head
    join holdfast.body b on b.task_id = head.task_id
    where l.queue_id = q.queue_id
  ) as oldest_seconds
from holdfast.queue q
where q.tenant_id = $1 and ($2::text is null or q.name = $2)
order by q.name;

-- name: queued_counts
-- Queued tasks per queue, each lane counted to a bound.
select l.queue_id, sum(c.count)::bigint as queued, bool_or(c.count >= $2) as is_more
from holdfast.lane l
cross join lateral (
  select count(*) as count
  from (
    select
    from holdfast.live t
    where t.state = 'q' and t.lane_id = l.lane_id
    limit $2
  ) counted
) c
where l.tenant_id = $1
group by l.queue_id;

-- name: held_counts
-- Running, reserved and waiting tasks per queue: bounded by what workers hold and what waits for its time.
select l.queue_id,
  count(*) filter (where t.state = 'r') as running,
  count(*) filter (where t.state = 'w' and t.is_retrying) as retrying,
  count(*) filter (where t.state = 'v' or (t.state = 'w' and not t.is_retrying)) as delayed
from (
  select lane_id, state, is_retrying
  from holdfast.live
  where state <> 'q' and tenant_id = $1
  limit $2
) t
join holdfast.lane l on l.lane_id = t.lane_id
group by l.queue_id;

-- name: ended_counts
-- Failed and canceled tasks per queue among the newest of each.
select l.queue_id, count(*) filter (where e.state = 'f') as failed, count(*) filter (where e.state = 'x') as canceled
from (
  (select lane_id, state from holdfast.ended where tenant_id = $1 and state = 'f' order by ended_at desc limit $2)
  union all
  (select lane_id, state from holdfast.ended where tenant_id = $1 and state = 'x' order by ended_at desc limit $2)
) e
join holdfast.lane l on l.lane_id = e.lane_id
group by l.queue_id;

-- name: completed_counts
-- Completed tasks per queue among the newest kept ones: history is looked at to a bound, never as a whole.
with newest as materialized (
  select task_id
  from holdfast.attempt
  where state = 'c' and tenant_id = $1
  order by task_id desc
  limit $2
)
select l.queue_id, count(*) as completed, (select count(*) from newest) >= $2 as is_partial
from newest
join holdfast.body b on b.task_id = newest.task_id
join holdfast.lane l on l.lane_id = b.lane_id
where b.task_id >= (select min(task_id) from newest)
group by l.queue_id;

-- name: list_actions
-- What workers declared, with who is live to run it.
select a.name, a.queue, a.version, a.seen_at, p.max_retries, p.max_retries + 1 as max_attempts, p.max_losses,
  p.timeout_seconds, p.content::text as policy,
  case when b.state = 'c' then 'closed' when b.state = 'h' or b.trial_at <= holdfast.instant() then 'half_open'
    when b.state = 'o' then 'open' end as breaker,
  (
    select count(*)::int
    from holdfast.worker w
    where w.state = 'active' and a.name = any(w.actions) and (w.queues is null or a.queue = any(w.queues))
  ) as workers
from holdfast.action a
join holdfast.policy p on p.policy_id = a.policy_id
left join holdfast.breaker b on b.tenant_id = a.tenant_id and b.action = a.name
where a.tenant_id = $1 and ($2::text is null or a.name = $2)
order by a.name;

-- name: show_worker
-- What one worker holds now.
select t.task_id::text as task_id, l.action, q.name as queue, t.attempt, t.started_at, t.lease_expires_at,
  t.cancel_at is not null as is_canceling
from holdfast.live t
join holdfast.lane l on l.lane_id = t.lane_id
join holdfast.queue q on q.queue_id = l.queue_id
where t.state = 'r' and t.worker_id = $1
order by t.started_at
limit $2;

-- name: find_worker
-- One worker by its number.
select w.worker_id, w.name, w.version, w.state, w.slots, w.queues, w.actions, w.started_at, w.beat_at, w.ended_at,
  w.health::text as health, extract(epoch from holdfast.instant() - w.beat_at)::double precision as beat_age_seconds,
  (select count(*)::int from holdfast.live t where t.state = 'r' and t.worker_id = w.worker_id) as running
from holdfast.worker w
where w.worker_id = $1;

-- name: pulse
-- Two counters whose growth tells the rates: ids drawn, and attempts finished as the server's statistics know them.
select (select last_value from holdfast.task_id) % 10000000000 as enqueued,
  (
    select coalesce(sum(n_tup_ins), 0)::bigint
    from pg_stat_user_tables
    where schemaname = 'holdfast' and relname like 'attempt\_%'
  ) as finished;
