-- Reading: views for people, dashboards and SQL of the user's own; and functions that lists are built on.
--
-- The views show the logical model: task ids as text, states as words. All of them run with the rights of the reader
-- (security_invoker), so row-level security applies.

-- Tasks. A task that is a node or an item has no body: tags and times are those of its run, lane and policy those of
-- its snapshot. A node without a task of its own (blocked, skipped, waiting for others) is shown as a task all the
-- same.
create view holdfast.tasks with (security_invoker = true) as
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
  from holdfast.locate_task(a.task_id) w
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
join lateral holdfast.nodes_of(r.run_id) s on s.is_taskless
left join holdfast.lane l on l.lane_id = s.lane_id
left join holdfast.queue q on q.queue_id = l.queue_id
left join holdfast.policy p on p.policy_id = s.policy_id;

-- Attempts. dispatched_at is when a worker was requested; for an attempt that a worker claimed by itself, when it
-- began.
create view holdfast.attempts with (security_invoker = true) as
select t.task_id::text as task_id, t.attempt, 'running' as state, t.worker_id, t.lease_token, t.started_at,
  null::timestamptz as ended_at, null::text as code, null::text as type, null::text as message, null::text as traceback,
  null::text as decision, null::text as reason, null::text as rule, null::text as sentence, null::timestamptz as retry_at,
  null::bytea as output, null::text as class, holdfast.dispatched_at(t.task_id, t.attempt, t.started_at) as dispatched_at
from holdfast.live t
where t.state in ('r', 'v')
union all
select a.task_id::text, a.attempt, case a.state when 'c' then 'completed' when 'x' then 'canceled' else 'released' end,
  a.worker_id, a.lease_token, a.started_at, a.ended_at, null, null, null, null, null, null, null, null, null, a.output, null,
  holdfast.dispatched_at(a.task_id, a.attempt, a.started_at)
from holdfast.attempt a
union all
select f.task_id::text, f.attempt, case f.state when 'f' then 'failed' when 't' then 'timed_out' else 'lost' end,
  f.worker_id, f.lease_token, f.started_at, f.ended_at, f.code, f.type, f.message, f.traceback, f.decision, f.reason,
  f.rule, f.sentence, f.retry_at, null, coalesce(f.class, f.reason),
  holdfast.dispatched_at(f.task_id, f.attempt, f.started_at)
from holdfast.failure f;

-- Tasks that are copies of others.
create view holdfast.copies with (security_invoker = true) as
select b.original_task_id::text as original_execution, b.task_id::text as task_id, n.name as tenant, b.created_at
from holdfast.body b
join holdfast.tenant n on n.tenant_id = b.tenant_id
where b.original_task_id is not null;

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

create view holdfast.effects with (security_invoker = true) as
select e.task_id::text as task_id, n.name as tenant, e.name as effect, e.user_key, e.key as idempotency_key,
  holdfast.effect_state(e) as state, e.attempt, e.generation, e.sends, e.opened_at, e.sent_at, e.answered_at, e.receipt,
  e.code, e.message, e.compensation, e.compensated_by::text as compensated_by, e.compensated_at
from holdfast.effect e
join holdfast.tenant n on n.tenant_id = e.tenant_id;

-- Ids of the newest rows of a kind that a tenant has, from `first` up to but not including `before`. At most `many`
-- rows are read; of these only the ones of the named lanes and states are returned. The row with `is_edge` comes last
-- and says how far was read, if there may be more. `number` is the attempt of a completed task, or the number of a
-- node in its run (`id`).
--
-- Runs with its owner's rights and returns ids only: the rows are then read through row-level security. Positions are
-- compared as rows, which only an index of that order can serve: behind row-level security a planner that once saw a
-- single tenant would follow the primary key, and read the rows of all other tenants.
create function holdfast.newest_ids(
  kind text, tenant int, first bigint, before bigint, many int, lanes int[] default null, states text[] default null,
  out id bigint, out number int, out is_edge boolean
) returns setof record language plpgsql stable security definer rows 10
  set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  ids bigint[];
  numbers int[];
  edge bigint;
  edge_number int;
  running_max constant int := 10 * many;
  is_crowded boolean := false;
begin
  if not holdfast.may_act_for(tenant) then
    return;
  end if;
  case kind
  when 'running' then
    -- The index has these in no order. If a tenant runs more than can be sorted, its running tasks are picked from the
    -- newest tasks of all tenants instead.
    select array_agg(f.task_id order by f.task_id desc) filter (
        where f.task_id < before and f.task_id >= first and (lanes is null or f.lane_id = any(lanes))
      ), count(*) > running_max
    into ids, is_crowded
    from (
      select t.task_id, t.lane_id
      from holdfast.live t
      where t.state = 'r' and t.due_at is null and t.tenant_id = tenant
      limit running_max + 1
    ) f;
    edge := ids[many];
    ids := ids[:many];
  when 'waiting' then
    select array_agg(f.task_id) filter (where lanes is null or f.lane_id = any(lanes)),
      case when count(*) >= many then min(f.task_id) end
    into ids, edge
    from (
      select t.task_id, t.lane_id
      from holdfast.live t
      where t.state <> 'q' and t.worker_id is null
        and (t.tenant_id, t.task_id) < (tenant, before) and (t.tenant_id, t.task_id) >= (tenant, first)
      order by t.tenant_id desc, t.task_id desc
      limit many
    ) f;
  when 'ended' then
    select array_agg(f.task_id) filter (
        where (lanes is null or f.lane_id = any(lanes)) and (states is null or f.state::text = any(states))
      ), case when count(*) >= many then min(f.task_id) end
    into ids, edge
    from (
      select e.task_id, e.lane_id, e.state
      from holdfast.ended e
      where (e.tenant_id, e.task_id) < (tenant, before) and (e.tenant_id, e.task_id) >= (tenant, first)
      order by e.tenant_id desc, e.task_id desc
      limit many
    ) f;
  when 'completed' then
    if (select b.is_shared from holdfast.block b where first between b.first_id and b.last_id) then
      select array_agg(f.task_id), array_agg(f.attempt), case when count(*) >= many then min(f.task_id) end,
        (array_agg(f.attempt))[many]
      into ids, numbers, edge, edge_number
      from (
        select a.task_id, a.attempt
        from holdfast.attempt a
        where a.state = 'c'
          and (a.tenant_id, a.task_id) < (tenant, before) and (a.tenant_id, a.task_id) >= (tenant, first)
          and a.task_id < before and a.task_id >= first
        order by a.tenant_id desc, a.task_id desc
        limit many
      ) f;
    else
      select array_agg(f.task_id) filter (where f.tenant_id = tenant and f.state = 'c'),
        array_agg(f.attempt) filter (where f.tenant_id = tenant and f.state = 'c'),
        case when count(*) >= many then min(f.task_id) end
      into ids, numbers, edge
      from (
        select a.task_id, a.attempt, a.tenant_id, a.state
        from holdfast.attempt a
        where a.task_id < before and a.task_id >= first
        order by a.task_id desc
        limit many
      ) f;
    end if;
  when 'taskless' then
    select array_agg(f.run_id), array_agg(f.node_no), case when count(*) >= many then min(f.run_id) end,
      (array_agg(f.node_no))[many]
    into ids, numbers, edge, edge_number
    from (
      select n.run_id, n.node_no
      from holdfast.node n
      where n.state in ('c', 'f', 'x', 'k', 'u', 'm', 's', 'w') and n.node_no >= 0
        and (n.tenant_id, n.run_id) < (tenant, before) and (n.tenant_id, n.run_id) >= (tenant, first)
        and n.run_id < before and n.run_id >= first
      order by n.tenant_id desc, n.run_id desc, n.node_no desc
      limit many
    ) f;
  when 'runs' then
    select array_agg(f.run_id) filter (where states is null or f.state::text = any(states)),
      case when count(*) >= many then min(f.run_id) end
    into ids, edge
    from (
      select r.run_id, r.state
      from holdfast.run r
      where (r.tenant_id, r.run_id) < (tenant, before) and (r.tenant_id, r.run_id) >= (tenant, first)
      order by r.tenant_id desc, r.run_id desc
      limit many
    ) f;
  when 'open runs' then
    select array_agg(f.run_id), case when count(*) >= many then min(f.run_id) end
    into ids, edge
    from (
      select r.run_id
      from holdfast.run r
      where r.state = 'o' and r.run_id > 0
        and (r.tenant_id, r.run_id) < (tenant, before) and (r.tenant_id, r.run_id) >= (tenant, first)
      order by r.tenant_id desc, r.run_id desc
      limit many
    ) f;
  when 'failed runs' then
    select array_agg(f.run_id) filter (where states is null or f.state::text = any(states)),
      case when count(*) >= many then min(f.run_id) end
    into ids, edge
    from (
      select r.run_id, r.state
      from holdfast.run r
      where r.state in ('f', 'x')
        and (r.tenant_id, r.run_id) < (tenant, before) and (r.tenant_id, r.run_id) >= (tenant, first)
      order by r.tenant_id desc, r.run_id desc
      limit many
    ) f;
  when 'dead letters' then
    select array_agg(f.dead_letter_id order by f.dead_letter_id desc) filter (where states is null or f.state = any(states)),
      (array_agg(f.dead_letter_id order by f.dead_letter_id desc))[many]
    into ids, edge
    from (
      (
        select d.dead_letter_id, d.state::text
        from holdfast.dead_letter d
        where (states is null or 'open' = any(states)) and d.state = 'open'
          and (d.tenant_id, d.dead_letter_id) < (tenant, before) and (d.tenant_id, d.dead_letter_id) >= (tenant, first)
        order by d.tenant_id desc, d.dead_letter_id desc
        limit many
      )
      union all
      (
        select d.dead_letter_id, d.state::text
        from holdfast.dead_letter d
        where (states is null or states <> '{open}') and d.state <> 'open' and d.dead_letter_id > 0
          and (d.tenant_id, d.dead_letter_id) < (tenant, before) and (d.tenant_id, d.dead_letter_id) >= (tenant, first)
        order by d.tenant_id desc, d.dead_letter_id desc
        limit many
      )
    ) f;
    ids := array(select u.id from unnest(ids) as u (id) where u.id >= coalesce(edge, first));
  when 'effects' then
    select array_agg(f.task_id order by f.task_id desc) filter (where states is null or f.state = any(states)),
      (array_agg(f.task_id order by f.task_id desc))[many]
    into ids, edge
    from (
      (
        select e.task_id, e.state::text
        from holdfast.effect e
        where e.state in ('p', 'u')
          and (e.tenant_id, e.task_id) < (tenant, before) and (e.tenant_id, e.task_id) >= (tenant, first)
        order by e.tenant_id desc, e.task_id desc
        limit many
      )
      union all
      (
        select e.task_id, e.state::text
        from holdfast.effect e
        where e.state not in ('p', 'u')
          and (e.tenant_id, e.task_id) < (tenant, before) and (e.tenant_id, e.task_id) >= (tenant, first)
        order by e.tenant_id desc, e.task_id desc
        limit many
      )
    ) f;
    ids := array(select u.id from unnest(ids) as u (id) where u.id >= coalesce(edge, first));
  when 'queued' then
    is_crowded := true;
  end case;
  if is_crowded then
    select array_agg(f.task_id) filter (
        where f.tenant_id = tenant and f.state = case kind when 'queued' then 'q' else 'r' end::"char"
          and (lanes is null or f.lane_id = any(lanes))
      ), case when count(*) >= many then min(f.task_id) end
    into ids, edge
    from (
      select t.task_id, t.tenant_id, t.lane_id, t.state
      from holdfast.live t
      where t.task_id < before and t.task_id >= first
      order by t.task_id desc
      limit many
    ) f;
  end if;
  return query select u.id, u.number, false from unnest(ids, numbers) as u (id, number);
  if edge is not null then
    return query select edge, edge_number, true;
  end if;
end $$;

-- The newest block before an id that holds something of a tenant, or tasks of any tenant that are not over; and where
-- in it the ids of spans begin. Lists walk through blocks with it. Runs with its owner's rights: tenants do not see
-- blocks.
create function holdfast.previous_block(tenant int, before bigint, out first_id bigint, out middle_id bigint, out last_id bigint)
  returns setof record language sql stable security definer
  set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
  select b.first_id, (b.first_id + b.last_id) / 2 + 1, b.last_id
  from holdfast.block b
  where b.first_id < before and holdfast.may_act_for(tenant)
    and (
      exists (select from holdfast.live t where t.task_id >= b.first_id and t.task_id <= b.last_id and t.task_id < before)
      or exists (select from holdfast.newest_ids('ended', tenant, b.first_id, least(before, b.last_id + 1), 1))
      or exists (select from holdfast.newest_ids('completed', tenant, b.first_id, least(before, b.last_id + 1), 1))
      or exists (select from holdfast.newest_ids('runs', tenant, b.first_id, least(before, b.last_id + 1), 1))
    )
  order by b.block desc
  limit 1
$$;
