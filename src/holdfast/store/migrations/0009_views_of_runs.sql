-- Seeing runs: where a task belongs, how nodes and runs stand, and views of both.

-- The place of a task: its run, the number of its node and, for one of many items, its number among them. By id alone:
-- a node lies in the span of the newest run that began before it, an item in the newest span of items. No row for a task
-- outside a flow.
create function holdfast.place(task bigint) returns table (run_id bigint, node_no int, item_no int)
  language sql stable as $$
  select coalesce(r.run_id, n.run_id), coalesce((task - r.run_id - 1)::int, n.node_no),
    case when r.run_id is null then (task - n.items_first)::int end
  from (select) as one
  left join lateral (
    select near.run_id
    from (
      select x.run_id, x.nodes
      from holdfast.run x
      where x.run_id < task
      order by x.run_id desc
      limit 1
    ) near
    where task <= near.run_id + near.nodes
  ) r on true
  left join lateral (
    select near.run_id, near.node_no, near.items_first
    from (
      select x.run_id, x.node_no, x.items_first, x.items
      from holdfast.node x
      where x.items_first <= task and r.run_id is null
      order by x.items_first desc
      limit 1
    ) near
    where task < near.items_first + near.items
  ) n on true
  where r.run_id is not null or n.run_id is not null
$$;

-- Where each node of a run stands: a live task, an end of its own, a completed attempt of its generation, or what is
-- remembered; a node of which nothing is known is blocked, or canceled with its run. `is_bare`: it has no task to look at.
-- Each table is probed by key, node by node (`limit 1` forbids another plan): a run is small beside them.
create function holdfast.nodes_of(run bigint) returns table (
  node_no int, task_id bigint, state text, attempt int, generation smallint, is_bare boolean, letter text, pending int,
  succeeded int, skipped int, failed int, items int, items_pending int, items_failed int, items_canceled int,
  items_first bigint, child_run_id bigint, deadline timestamptz, wait_key text, started_at timestamptz,
  ended_at timestamptz, lane_id int, policy_id int
)
  language sql stable as $$
  select n.node_no, r.run_id + 1 + n.node_no,
    case
      when t.state = 'r' then 'running'
      when t.state = 'w' and t.is_retrying then 'retrying'
      when t.state is not null then 'queued'
      when e.state = 'f' or m.state = 'f' then 'failed'
      when e.state = 'x' or m.state = 'x' then 'canceled'
      when a.task_id is not null or m.state = 'c' then 'completed'
      when m.state = 'k' then 'skipped'
      when m.state = 'u' then 'upstream_failed'
      when m.state in ('m', 's', 'w') then 'running'
      when r.canceled_at is not null then 'canceled'
      else 'blocked'
    end,
    coalesce(t.attempt, e.attempt, a.attempt, m.attempt, 0),
    coalesce(t.generation, e.generation, a.generation, m.generation, 1::smallint),
    t.task_id is null and e.task_id is null and a.task_id is null,
    m.state::text, m.pending, m.succeeded, m.skipped, m.failed, m.items, m.items_pending, m.items_failed,
    m.items_canceled, m.items_first, m.child_run_id, m.deadline, m.wait_key, coalesce(t.started_at, a.started_at), coalesce(a.ended_at, e.ended_at),
    s.lane_ids[n.node_no + 1], s.policy_ids[n.node_no + 1]
  from holdfast.run r
  join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
  cross join lateral generate_series(0, r.nodes - 1) as n (node_no)
  left join lateral (select x.* from holdfast.node x where x.run_id = r.run_id and x.node_no = n.node_no limit 1) m on true
  left join lateral (select x.* from holdfast.live x where x.task_id = r.run_id + 1 + n.node_no limit 1) t on true
  left join lateral (select x.* from holdfast.ended x where x.task_id = r.run_id + 1 + n.node_no limit 1) e on true
  left join lateral (
    select x.task_id, x.attempt, x.generation, x.started_at, x.ended_at
    from holdfast.attempt x
    where x.task_id = r.run_id + 1 + n.node_no and x.state = 'c' and x.generation = coalesce(m.generation, 1)
    limit 1
  ) a on true
  where r.run_id = run
$$;

-- The same as a view over all runs.
create or replace view holdfast.standing with (security_invoker = true) as
select r.run_id, n.node_no, r.tenant_id, n.state, n.attempt, n.generation::int as generation, n.letter, n.pending,
  n.succeeded, n.skipped, n.failed, n.items, n.items_pending, n.items_failed, n.items_first, n.child_run_id, n.deadline,
  n.wait_key, n.started_at, n.ended_at
from holdfast.run r
cross join lateral holdfast.nodes_of(r.run_id) n;

-- How a run stands, by the rule of the engine (core/flows/run_state.py): its verdict, or what holds it, or how far it is. An open
-- run has started once one of its nodes runs, waits for a retry or completed.
create function holdfast.run_state(r holdfast.run) returns text
  language sql stable as $$
  select case
    when r.state = 'c' then 'completed'
    when r.state = 'f' then 'failed'
    when r.state = 'x' then 'canceled'
    when r.canceled_at is not null then 'running'
    when r.paused_at is not null then 'paused'
    when r.failed > 0 then 'blocked'
    when exists (
      select
      from holdfast.live t
      where t.task_id > r.run_id and t.task_id <= r.run_id + r.nodes and (t.state = 'r' or t.is_retrying)
    ) then 'running'
    when exists (
      select
      from holdfast.node n
      where n.run_id = r.run_id and n.state in ('m', 's', 'w', 'c')
    ) then 'running'
    when exists (
      select
      from holdfast.attempt a
      left join holdfast.node n on n.run_id = r.run_id and n.node_no = a.task_id - r.run_id - 1
      where a.task_id > r.run_id and a.task_id <= r.run_id + r.nodes and a.state = 'c'
        and a.generation = coalesce(n.generation, 1)
    ) then 'running'
    else 'queued'
  end
$$;

-- Since when a node may have been ready, as far as is on record: its run began, its upstreams ended, its own last attempt
-- ended. Nobody notes the moment of release.
create function holdfast.ready_since(run bigint, node int) returns timestamptz
  language sql stable as $$
  select greatest(
    r.created_at,
    (
      select max(coalesce(a.ended_at, e.ended_at))
      from unnest(f.upstreams, f.downstreams) as g (upstream, downstream)
      left join holdfast.attempt a on a.task_id = r.run_id + 1 + g.upstream and a.state = 'c'
      left join holdfast.ended e on e.task_id = r.run_id + 1 + g.upstream
      where g.downstream = node
    ),
    (select max(x.ended_at) from holdfast.failure x where x.task_id = r.run_id + 1 + node),
    (select max(x.ended_at) from holdfast.attempt x where x.task_id = r.run_id + 1 + node)
  )
  from holdfast.run r
  join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
  join holdfast.flow f on f.flow_id = s.flow_id
  where r.run_id = run
$$;

-- Nodes whose end, or what stands in for their task, is remembered in no other table: what lists of tasks begin with.
create index node_bare on holdfast.node (run_id, node_no) where state in ('c', 'f', 'x', 'k', 'u', 'm', 's', 'w');

create view holdfast.runs with (security_invoker = true) as
select r.run_id::text as run_id, n.name as tenant, f.name as flow, f.version,
  case r.state when 'c' then 'completed' when 'f' then 'failed' when 'x' then 'canceled' else holdfast.run_state(r) end as state,
  r.nodes,
  r.pending, r.active, r.failed, r.created_at, r.ended_at, r.key, r.tags, r.generation, r.max_active, r.priority,
  r.paused_at, r.paused_by, r.paused_reason, r.canceled_at, r.canceled_by, r.cancel_reason,
  r.original_run_id::text as original_run, r.parent_run_id::text as parent_run, r.parent_node, r.input
from holdfast.run r
join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
join holdfast.flow f on f.flow_id = s.flow_id
join holdfast.tenant n on n.tenant_id = r.tenant_id;

create view holdfast.nodes with (security_invoker = true) as
select r.run_id::text as run_id, n.name as tenant, f.name as flow, f.version, d.node ->> 'name' as node,
  s.node_no, s.task_id::text as task_id, coalesce(d.node ->> 'kind', 'task') as kind, d.node ->> 'action' as action,
  q.name as queue, s.state, s.attempt, s.generation, s.started_at, s.ended_at, s.items, s.items_pending, s.items_failed,
  s.items_canceled, s.child_run_id::text as child_run, s.wait_key, s.deadline
from holdfast.run r
join holdfast.snapshot c on c.snapshot_id = r.snapshot_id
join holdfast.flow f on f.flow_id = c.flow_id
join holdfast.tenant n on n.tenant_id = r.tenant_id
cross join lateral jsonb_array_elements(f.definition -> 'nodes') with ordinality as d (node, number)
join lateral holdfast.nodes_of(r.run_id) s on s.node_no = d.number - 1
left join holdfast.lane l on l.lane_id = s.lane_id
left join holdfast.queue q on q.queue_id = l.queue_id;

-- Tasks that are nodes or items have no body: tags and times are those of their run, lane and policy those of its
-- snapshot. A node without a task of its own (blocked, skipped, waiting for others) is a task all the same.
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
  coalesce(r.created_at, e.created_at), null, e.ended_at, null, null, null, null, null, e.key, coalesce(e.tags, r.tags), null,
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
