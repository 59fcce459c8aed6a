-- Lists of one tenant beside others: what a page looks at are rows of its own. The wall stands at the scan, below any limit:
-- a tenant with three tasks would else pass over all that the others have.
--
-- Indexes lead with the tenant where a list begins. The hot ones have as many entries as before, and rare rows (waiting,
-- ended, letters, effects) one more each.

-- A running row has no due time, so its entry is found by tenant and worker: what a worker holds, and what a tenant runs.
drop index holdfast.live_held;
create index live_held on holdfast.live (state, due_at, tenant_id, worker_id) where state <> 'q';
-- Reserved and waiting rows. Its condition is not that of any statement that takes them: none goes along it by mistake.
create index live_waiting on holdfast.live (tenant_id, task_id) where state <> 'q' and worker_id is null;
create index ended_newest on holdfast.ended (tenant_id, task_id);
create index dead_letter_rest on holdfast.dead_letter (tenant_id, dead_letter_id) where state <> 'open';
create index effect_over on holdfast.effect (tenant_id, task_id) where state not in ('p', 'u');
drop index holdfast.node_bare;
create index node_bare on holdfast.node (tenant_id, run_id, node_no) where state in ('c', 'f', 'x', 'k', 'u', 'm', 's', 'w');
drop index holdfast.run_recent;
create index run_recent on holdfast.run (tenant_id, run_id);
drop index holdfast.run_open;
create index run_open on holdfast.run (tenant_id, run_id) where state = 'o';
drop index holdfast.run_failed;
create index run_failed on holdfast.run (tenant_id, run_id) where state in ('f', 'x');

-- Completions are the hot path: an index of them by tenant costs a tenth of a settlement. Only blocks that began with several
-- tenants have it. A block that began with one holds nothing of others, or what they did until the next one began.
alter table holdfast.block add column is_shared boolean not null default false;

create function holdfast.share_block(which int) returns void language plpgsql as $$
begin
  execute format('create index attempt_%s_newest on holdfast.attempt_%s (tenant_id, task_id) where state = ''c''', which, which);
end $$;

create or replace function holdfast.begin_block() returns int language plpgsql as $$
declare
  fresh int := coalesce((select max(b.block) + 1 from holdfast.block b), 0);
  first bigint := coalesce((select max(b.last_id) + 1 from holdfast.block b), 0);
  size constant bigint := 100000000000;
  is_shared constant boolean := (select count(*) > 1 from holdfast.tenant);
  part text;
begin
  -- Made apart and attached: that waits for no reader or writer, while `partition of` would wait for all of them.
  foreach part in array array['body', 'attempt', 'node'] loop
    execute format('create table holdfast.%s_%s (like holdfast.%s including all)', part, fresh, part);
    if part = 'attempt' and is_shared then
      perform holdfast.share_block(fresh);
    end if;
    execute format('alter table holdfast.%s attach partition holdfast.%s_%s for values from (%s) to (%s)',
      part, part, fresh, first, first + size);
  end loop;
  insert into holdfast.block (block, first_id, last_id, is_shared) values (fresh, first, first + size - 1, is_shared);
  return fresh;
end $$;

do $$
declare
  one int;
begin
  if (select count(*) > 1 from holdfast.tenant) then
    for one in select b.block from holdfast.block b loop
      perform holdfast.share_block(one);
    end loop;
    update holdfast.block set is_shared = true;
  end if;
end $$;

-- Ids of the newest rows of a kind that one tenant has, from one id to before another: so many are looked at and no more.
-- Of these only those of some lanes and states are told, where any are named. The row that `is_edge` comes last and says
-- how far was looked, where there may be more behind it. `number` is the attempt of a completed task, or a node's number in
-- its run (`id`).
--
-- As the owner, and ids only: the rows are then read through the wall. Places are compared as rows, which only an index of
-- that order can do: behind the wall a planner that once saw a single tenant would go along the primary key.
create function holdfast.newest(
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
      where n.state in ('c', 'f', 'x', 'k', 'u', 'm', 's', 'w')
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
      where r.state = 'o'
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
        where (states is null or states <> '{open}') and d.state <> 'open'
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

-- Running, reserved and waiting tasks of a tenant, so many of each, by lane. As the owner, as above.
create function holdfast.held_in(tenant int, most int)
  returns table (lane_id int, state "char", is_retrying boolean, tasks bigint)
  language sql stable security definer
  set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
  select f.lane_id, f.state, f.is_retrying, count(*)
  from (
    (
      select t.lane_id, t.state, t.is_retrying
      from holdfast.live t
      where t.state = 'r' and t.due_at is null and t.tenant_id = tenant
      limit most
    )
    union all
    (
      select t.lane_id, t.state, t.is_retrying
      from holdfast.live t
      where t.state <> 'q' and t.worker_id is null and (t.tenant_id, t.task_id) >= (tenant, 0) and t.tenant_id <= tenant
      order by t.tenant_id, t.task_id
      limit most
    )
  ) f
  where holdfast.is_for(tenant)
  group by f.lane_id, f.state, f.is_retrying
$$;

-- The newest block before an id that holds something of a tenant, or tasks that are not over of anybody: as
-- holdfast.block_before, which older versions ask.
create function holdfast.block_of(tenant int, before bigint, out first_id bigint, out middle_id bigint, out last_id bigint)
  returns setof record language sql stable security definer
  set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
  select b.first_id, (b.first_id + b.last_id) / 2 + 1, b.last_id
  from holdfast.block b
  where b.first_id < before and holdfast.is_for(tenant)
    and (
      exists (select from holdfast.live t where t.task_id >= b.first_id and t.task_id <= b.last_id and t.task_id < before)
      or exists (select from holdfast.newest('ended', tenant, b.first_id, least(before, b.last_id + 1), 1))
      or exists (select from holdfast.newest('completed', tenant, b.first_id, least(before, b.last_id + 1), 1))
      or exists (select from holdfast.newest('runs', tenant, b.first_id, least(before, b.last_id + 1), 1))
    )
  order by b.block desc
  limit 1
$$;
