-- Indexes for lists are for lists alone. They begin with the tenant, and what takes runs, nodes or letters by their keys
-- names the same states: PostgreSQL before 18 then went through the whole of such an index, where it knew a table as
-- empty. Their conditions are no longer those of any statement but the list's own: what they add is true of every row.

drop index holdfast.run_open;
create index run_open on holdfast.run (tenant_id, run_id) where state = 'o' and run_id > 0;
drop index holdfast.node_bare;
create index node_bare on holdfast.node (tenant_id, run_id, node_no)
  where state in ('c', 'f', 'x', 'k', 'u', 'm', 's', 'w') and node_no >= 0;
drop index holdfast.dead_letter_rest;
create index dead_letter_rest on holdfast.dead_letter (tenant_id, dead_letter_id) where state <> 'open' and dead_letter_id > 0;

-- Ids of the newest rows of a kind that one tenant has, from one id to before another: so many are looked at and no more.
-- Of these only those of some lanes and states are told, where any are named. The row that `is_edge` comes last and says
-- how far was looked, where there may be more behind it. `number` is the attempt of a completed task, or a node's number in
-- its run (`id`).
--
-- As the owner, and ids only: the rows are then read through the wall. Places are compared as rows, which only an index of
-- that order can do: behind the wall a planner that once saw a single tenant would go along the primary key.
create or replace function holdfast.newest(
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
  if not holdfast.is_for(tenant) then
    return;
  end if;
  case kind
  when 'running' then
    -- These are in no order. Who runs more than can be sorted is shown those among the newest tasks of all.
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
  when 'bare' then
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
  when 'letters' then
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

-- How a run is shown, of the columns that say so. Behind a wall the end of its ids must be a plain value: an index is not
-- entered by a sum, and what is newer than the run would be gone through.
create or replace function holdfast.state_of_run(
  run bigint, its_nodes int, stored "char", canceled timestamptz, paused timestamptz, failures int
) returns table (state text) language sql stable as $$
  select case
    when stored = 'c' then 'completed'
    when stored = 'f' then 'failed'
    when stored = 'x' then 'canceled'
    when canceled is not null then 'running'
    when paused is not null then 'paused'
    when failures > 0 then 'blocked'
    when exists (
      select
      from holdfast.live t
      where t.task_id > run and t.task_id <= u.last_id and (t.state = 'r' or t.is_retrying)
    ) then 'running'
    when exists (
      select
      from holdfast.node n
      where n.run_id = run and n.state in ('m', 's', 'w', 'c')
    ) then 'running'
    when exists (
      select
      from holdfast.attempt a
      left join holdfast.node n on n.run_id = run and n.node_no = a.task_id - run - 1
      where a.task_id > run and a.task_id <= u.last_id and a.state = 'c'
        and a.generation = coalesce(n.generation, 1)
    ) then 'running'
    else 'queued'
  end
  from (select run + its_nodes as last_id offset 0) u
$$;
