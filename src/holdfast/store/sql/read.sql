-- name: list_tasks
-- A page of tasks, newest first, before an id. Each branch reads at most a page; one whose states were not asked for
-- reads nothing. Nodes without a task of their own come from their runs, newest run first. Names, times and last failures
-- are fetched for the rows shown, never for those passed over; a definition is read once for all rows of its snapshot.
with page as materialized (
  select *
  from (
    (
      select t.task_id, 'queued' as state, t.attempt, t.run_id, t.node_no
      from holdfast.live t
      where ($2::text[] is null or 'queued' = any($2))
        and t.state = 'q' and t.tenant_id = $1 and t.task_id < $5
        and ($3::int[] is null or t.lane_id = any($3))
        and ($4::text is null or exists (
          select from holdfast.body b where b.task_id = t.task_id and $4 = any(b.tags)
          union all
          select from holdfast.run r where r.run_id = t.run_id and $4 = any(r.tags)
        ))
      order by t.task_id desc
      limit $6
    )
    union all
    (
      select t.task_id, case when t.state = 'r' then 'running' when t.is_retrying then 'retrying' else 'queued' end,
        t.attempt, t.run_id, t.node_no
      from holdfast.live t
      where ($2::text[] is null or $2 && array['queued', 'running', 'retrying'])
        and t.state <> 'q' and t.tenant_id = $1 and t.task_id < $5
        and ($2::text[] is null
          or case when t.state = 'r' then 'running' when t.is_retrying then 'retrying' else 'queued' end = any($2))
        and ($3::int[] is null or t.lane_id = any($3))
        and ($4::text is null or exists (
          select from holdfast.body b where b.task_id = t.task_id and $4 = any(b.tags)
          union all
          select from holdfast.run r where r.run_id = t.run_id and $4 = any(r.tags)
        ))
      order by t.task_id desc
      limit $6
    )
    union all
    (
      select e.task_id, case e.state when 'f' then 'failed' else 'canceled' end, e.attempt, e.run_id, e.node_no
      from holdfast.ended e
      where ($2::text[] is null or $2 && array['failed', 'canceled'])
        and e.tenant_id = $1 and e.task_id < $5
        and ($2::text[] is null or case e.state when 'f' then 'failed' else 'canceled' end = any($2))
        and ($3::int[] is null or e.lane_id = any($3))
        and ($4::text is null or $4 = any(e.tags)
          or exists (select from holdfast.run r where r.run_id = e.run_id and $4 = any(r.tags)))
      order by e.task_id desc
      limit $6
    )
    union all
    (
      select a.task_id, 'completed', a.attempt, w.run_id, w.node_no
      from holdfast.attempt a
      left join lateral (select b.lane_id, b.tags from holdfast.body b where b.task_id = a.task_id limit 1) b on true
      left join lateral (
        select w.run_id, w.node_no, w.item_no, r.tags, s.lane_ids[w.node_no + 1] as lane_id,
          coalesce(m.generation, 1) as generation
        from holdfast.place(a.task_id) w
        join holdfast.run r on r.run_id = w.run_id
        join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
        left join holdfast.node m on m.run_id = w.run_id and m.node_no = w.node_no
        where b.lane_id is null
        limit 1
      ) w on true
      where ($2::text[] is null or 'completed' = any($2))
        and a.state = 'c' and a.tenant_id = $1 and a.task_id < $5
        and (b.lane_id is not null or w.item_no is not null or w.generation = a.generation)
        and ($3::int[] is null or coalesce(b.lane_id, w.lane_id) = any($3))
        and ($4::text is null or $4 = any(b.tags) or $4 = any(w.tags))
      order by a.task_id desc
      limit $6
    )
    union all
    (
      select n.run_id + 1 + n.node_no,
        case n.state when 'k' then 'skipped' when 'u' then 'upstream_failed' when 'c' then 'completed'
          when 'f' then 'failed' when 'x' then 'canceled' else 'running' end,
        n.attempt, n.run_id, n.node_no
      from holdfast.node n
      where ($2::text[] is null
          or $2 && array['skipped', 'upstream_failed', 'completed', 'failed', 'canceled', 'running'])
        and n.state in ('c', 'f', 'x', 'k', 'u', 'm', 's', 'w') and n.tenant_id = $1 and n.run_id < $5
        and n.run_id + 1 + n.node_no < $5
        and ($2::text[] is null
          or case n.state when 'k' then 'skipped' when 'u' then 'upstream_failed' when 'c' then 'completed'
            when 'f' then 'failed' when 'x' then 'canceled' else 'running' end = any($2))
        and (($3::int[] is null and $4::text is null) or exists (
          select
          from holdfast.run r
          join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
          where r.run_id = n.run_id and ($3::int[] is null or s.lane_ids[n.node_no + 1] = any($3))
            and ($4::text is null or $4 = any(r.tags))
        ))
      order by n.run_id desc, n.node_no desc
      limit $6
    )
    union all
    (
      select n.task_id, n.state, n.attempt, r.run_id, n.node_no
      from holdfast.run r
      cross join lateral holdfast.nodes_of(r.run_id) n
      where ($2::text[] is null or $2 && array['blocked', 'canceled'])
        and r.state = 'o' and r.tenant_id = $1 and r.run_id < $5 and n.task_id < $5
        and ($2::text[] is null or case when r.canceled_at is null then 'blocked' else 'canceled' end = any($2))
        and (r.canceled_at is not null or r.pending > r.active)
        and n.is_bare and (n.letter is null or n.letter in ('b', 'h', 'r'))
        and ($3::int[] is null or n.lane_id = any($3))
        and ($4::text is null or $4 = any(r.tags))
      order by r.run_id desc, n.node_no desc
      limit $6
    )
    union all
    (
      select n.task_id, n.state, n.attempt, r.run_id, n.node_no
      from holdfast.run r
      cross join lateral holdfast.nodes_of(r.run_id) n
      where ($2::text[] is null or 'canceled' = any($2))
        and r.state in ('f', 'x') and r.state = 'x' and r.tenant_id = $1 and r.run_id < $5 and n.task_id < $5
        and n.is_bare and (n.letter is null or n.letter in ('b', 'h', 'r'))
        and ($3::int[] is null or n.lane_id = any($3))
        and ($4::text is null or $4 = any(r.tags))
      order by r.run_id desc, n.node_no desc
      limit $6
    )
  ) found
  order by task_id desc
  limit $6
),
placed as materialized (
  select page.*, r.snapshot_id, r.created_at, r.tags, r.priority
  from page
  left join holdfast.run r on r.run_id = page.run_id
),
names as materialized (
  select s.snapshot_id, (d.number - 1)::int as node_no, d.node ->> 'name' as node, d.node ->> 'action' as action,
    s.lane_ids[d.number] as lane_id, s.policy_ids[d.number] as policy_id, s.priorities[d.number] as priority
  from (select distinct snapshot_id from placed) asked
  join holdfast.snapshot s on s.snapshot_id = asked.snapshot_id
  join holdfast.flow f on f.flow_id = s.flow_id
  cross join lateral jsonb_array_elements(f.definition -> 'nodes') with ordinality as d (node, number)
)
select page.task_id::text as task_id, page.state, coalesce(l.action, names.action) as action, coalesce(q.name, '') as queue,
  page.attempt, coalesce(t.max_retries, e.max_retries, p.max_retries, 0) + 1 as max_attempts,
  coalesce(t.priority, e.priority, b.priority, page.priority, names.priority) as priority,
  coalesce(b.tags, e.tags, page.tags, '{}') as tags, coalesce(b.key, e.key) as key,
  coalesce(b.created_at, page.created_at, e.created_at) as created_at, coalesce(t.started_at, a.started_at) as started_at,
  coalesce(e.ended_at, a.ended_at) as ended_at,
  case when not t.is_retrying then t.due_at end as due_at, case when t.is_retrying then t.due_at end as next_retry_at,
  w.name as worker, f.code, f.type, f.message, holdfast.instant() as at, page.run_id::text as run_id, names.node
from placed page
left join holdfast.live t on t.task_id = page.task_id and page.state in ('queued', 'running', 'retrying')
left join holdfast.ended e on e.task_id = page.task_id and page.state in ('failed', 'canceled')
left join holdfast.attempt a on a.task_id = page.task_id and a.attempt = page.attempt and a.state = 'c' and page.state = 'completed'
left join lateral (select * from holdfast.body b where b.task_id = page.task_id limit 1) b on true
left join names on names.snapshot_id = page.snapshot_id and names.node_no = page.node_no
left join holdfast.lane l on l.lane_id = coalesce(t.lane_id, e.lane_id, b.lane_id, names.lane_id)
left join holdfast.queue q on q.queue_id = l.queue_id
left join holdfast.policy p on p.policy_id = coalesce(t.policy_id, e.policy_id, b.policy_id, names.policy_id)
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
-- One task in full. A live row wins over older endings; a completion counts only in the present generation of its node.
with place as materialized (
  select w.run_id, w.node_no, w.item_no, r.snapshot_id, r.created_at, r.tags, s.lane_ids[w.node_no + 1] as lane_id,
    s.policy_ids[w.node_no + 1] as policy_id, coalesce(r.priority, s.priorities[w.node_no + 1]) as priority,
    coalesce(n.generation, 1) as generation,
    w.item_no is not null and n.items_first is distinct from $1::bigint - w.item_no as is_past
  from holdfast.place($1) w
  join holdfast.run r on r.run_id = w.run_id and r.tenant_id = $2
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
  where t.task_id = $1 and t.tenant_id = $2
  union all
  select 2, e.task_id, case e.state when 'f' then 'failed' else 'canceled' end, e.lane_id, e.policy_id, e.attempt, e.retries,
    e.losses, e.max_retries, e.max_losses, e.generation, e.priority, coalesce(w.created_at, e.created_at), null, e.ended_at,
    null, false, null, null, e.actor, e.reason, e.key, coalesce(e.tags, w.tags), null, e.input, null
  from holdfast.ended e
  left join place w on true
  where e.task_id = $1 and e.tenant_id = $2
  union all
  select 3, a.task_id, 'completed', coalesce(b.lane_id, w.lane_id), p.policy_id, a.attempt, null, null, p.max_retries,
    p.max_losses, a.generation, coalesce(b.priority, w.priority), coalesce(b.created_at, w.created_at), a.started_at,
    a.ended_at, null, false, null, null, null, null, b.key, coalesce(b.tags, w.tags), b.original_task_id, b.input, a.output
  from holdfast.attempt a
  left join holdfast.body b on b.task_id = a.task_id
  left join place w on true
  join holdfast.policy p on p.policy_id = coalesce(b.policy_id, w.policy_id)
  where a.task_id = $1 and a.tenant_id = $2 and a.state = 'c'
    and (b.task_id is not null or w.item_no is not null or a.generation = w.generation)
  union all
  select 4, n.task_id, n.state, n.lane_id, n.policy_id, n.attempt, null, null, p.max_retries, p.max_losses, n.generation,
    w.priority, w.created_at, null, null, null, false, null, null, null, null, null, w.tags, null, null, m.output
  from place w
  cross join lateral (
    select n.*
    from holdfast.nodes_of(w.run_id) n
    where n.node_no = w.node_no and n.is_bare and w.item_no is null
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
    where f.task_id = $1 and w.is_past
    order by f.attempt desc
    limit 1
  ) f
  join holdfast.policy p on p.policy_id = w.policy_id
) t
left join place w on true
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
-- Completed tasks per queue among the newest kept ones: history is looked at to a bound, never as a whole. Nodes and items
-- are laid beside the spans of their runs in one pass over both, in order, and a snapshot is read once.
with newest as materialized (
  select task_id
  from holdfast.attempt
  where state = 'c' and tenant_id = $1
  order by task_id desc
  limit $2
),
known as materialized (
  select newest.task_id, b.lane_id
  from newest
  left join holdfast.body b on b.task_id = newest.task_id and b.task_id >= (select min(task_id) from newest)
),
spans as materialized (
  select r.run_id as first_id, r.run_id + r.nodes as last_id, r.snapshot_id, null::int as node_no
  from holdfast.run r
  where r.tenant_id = $1 and r.run_id >= (
    select coalesce(max(x.run_id), 0)
    from holdfast.run x
    where x.run_id < (select min(task_id) from known where lane_id is null)
  )
  union all
  select n.items_first, n.items_first + n.items - 1, r.snapshot_id, n.node_no
  from holdfast.item_span n
  join holdfast.run r on r.run_id = n.run_id
  where n.tenant_id = $1 and n.items_first + n.items > (select min(task_id) from known where lane_id is null)
),
beside as (
  select x.task_id, max(x.first_id) over (order by x.id, x.task_id nulls first) as first_id
  from (
    select known.task_id as id, known.task_id, null::bigint as first_id
    from known
    where known.lane_id is null
    union all
    select spans.first_id, null, spans.first_id
    from spans
  ) x
),
placed as materialized (
  select spans.snapshot_id, coalesce(spans.node_no, (beside.task_id - spans.first_id - 1)::int) as node_no,
    count(*) as count
  from beside
  join spans on spans.first_id = beside.first_id and beside.task_id <= spans.last_id
  group by 1, 2
),
counted as (
  select lane_id, count(*) as count
  from known
  where lane_id is not null
  group by lane_id
  union all
  select g.lane_id, placed.count
  from holdfast.snapshot s
  cross join lateral unnest(s.lane_ids) with ordinality as g (lane_id, number)
  join placed on placed.snapshot_id = s.snapshot_id and placed.node_no = g.number - 1
)
select l.queue_id, sum(counted.count)::bigint as completed, (select count(*) from newest) >= $2 as is_partial
from counted
join holdfast.lane l on l.lane_id = counted.lane_id
group by l.queue_id;

-- name: blocked_counts
-- Blocked nodes per queue, of as many of the newest open runs that have any as fit into a bound on nodes.
with open as materialized (
  select r.run_id, sum(r.nodes) over (order by r.run_id desc) as looked
  from holdfast.run r
  where r.state = 'o' and r.tenant_id = $1 and r.pending > r.active
)
select l.queue_id, count(*) as blocked, (select max(looked) from open) > $2 as is_partial
from open
cross join lateral holdfast.nodes_of(open.run_id) n
join holdfast.lane l on l.lane_id = n.lane_id
where open.looked <= $2 and n.state = 'blocked'
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
    where w.state = 'active' and w.tenant_id = a.tenant_id and a.name = any(w.actions)
      and (w.queues is null or a.queue = any(w.queues))
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
-- One worker by its number, of one tenant or of any.
select w.worker_id, w.name, w.version, w.state, w.slots, w.queues, w.actions, w.started_at, w.beat_at, w.ended_at,
  w.health::text as health, extract(epoch from holdfast.instant() - w.beat_at)::double precision as beat_age_seconds,
  (select count(*)::int from holdfast.live t where t.state = 'r' and t.worker_id = w.worker_id) as running,
  w.labels->>'probe_url' as probe_url, p.checked_at, p.is_healthy, p.failures, p.detail
from holdfast.worker w
left join holdfast.probe p on p.worker_id = w.worker_id
where w.worker_id = $1 and ($2::int is null or w.tenant_id = $2);

-- name: pulse
-- Two counters whose growth tells the rates: ids drawn, and attempts finished as the server's statistics know them.
select (select last_value from holdfast.task_id) % 10000000000 as enqueued,
  (
    select coalesce(sum(n_tup_ins), 0)::bigint
    from pg_stat_user_tables
    where schemaname = 'holdfast' and relname like 'attempt\_%'
  ) as finished;
