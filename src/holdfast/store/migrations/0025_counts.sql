-- Counts of completed work: exact, and nothing that enqueues, claims or settles takes part in them.
--
-- Every completion is told by an event of its own transaction. A pass adds up the events that no pass has seen, by lane
-- and by ten thousand million ids, and remembers the snapshot it saw them in; who asks adds what came since. What was seen
-- is kept as a snapshot and not as a place in the order of events: a transaction may tell of earlier ids, and may commit
-- later than others that began after it.

create table holdfast.completed (
  lane_id int not null,
  -- Ten thousand million ids: a block begins and ends with one.
  bucket bigint not null,
  tenant_id int not null,
  tasks bigint not null,
  primary key (lane_id, bucket)
);

-- What has been counted into it: the events that this snapshot saw, of the epoch with this base and all before it. One row.
create table holdfast.counted (
  is_it boolean primary key default true check (is_it),
  seen pg_snapshot not null,
  base bigint not null default holdfast.event_base()
);

-- The number of the transaction that an event stands at.
create function holdfast.event_transaction(place xid8) returns xid8
  language sql immutable strict parallel safe
  return (place::text::bigint & 17592186044415)::text::xid8;

-- The place in an epoch, by its base, from which on not everything was counted.
create function holdfast.uncounted_from(c holdfast.counted) returns xid8
  language sql immutable parallel safe
  return (c.base + pg_snapshot_xmin(c.seen)::text::bigint)::text::xid8;

-- Whether an event was counted.
create function holdfast.is_counted(c holdfast.counted, place xid8) returns boolean
  language sql immutable parallel safe
  return place::text::bigint < c.base + 17592186044416 and pg_visible_in_snapshot(holdfast.event_transaction(place), c.seen);

-- Tasks that stand completed among some ids, by lane. A node counts in its present generation.
create function holdfast.completed_between(first_id bigint, last_id bigint)
  returns table (bucket bigint, lane_id int, tasks bigint)
  language sql stable as $$
  select a.task_id / 10000000000, b.lane_id, count(*)
  from holdfast.attempt a
  join holdfast.body b on b.task_id = a.task_id
  where a.state = 'c' and a.task_id between first_id and last_id
  group by 1, 2
  union all
  select g.bucket, s.lane_ids[g.node_no + 1], sum(g.tasks)::bigint
  from (
    select a.task_id / 10000000000 as bucket, r.snapshot_id, w.node_no, count(*) as tasks
    from holdfast.attempt a
    left join holdfast.body b on b.task_id = a.task_id
    cross join lateral (select * from holdfast.place(a.task_id) offset 0) w
    join holdfast.run r on r.run_id = w.run_id
    left join holdfast.node n on n.run_id = w.run_id and n.node_no = w.node_no
    where a.state = 'c' and a.task_id between first_id and last_id and b.task_id is null
      and (w.item_no is not null or a.generation = coalesce(n.generation, 1))
    group by 1, 2, 3
  ) g
  join holdfast.snapshot s on s.snapshot_id = g.snapshot_id
  group by 1, 2
$$;

-- What events tell that a snapshot did not see: completions, less those of nodes that stood completed when a re-drive took
-- them back. Of one tenant, or of all; of so many events, the oldest first, or of all. What was deleted since has no lane and
-- does not count; nodes that run no task have no attempt.
create function holdfast.completed_since(seen holdfast.counted, tenant int, most bigint)
  returns table (bucket bigint, lane_id int, tasks bigint)
  language sql stable as $$
  with fresh as materialized (
    select e.kind, e.task_ids, e.attempts, e.detail
    from (
      select e.xid, e.tenant_id, e.kind, e.task_ids, e.attempts, e.detail
      from holdfast.event e
      where e.xid >= holdfast.uncounted_from(seen)
      order by e.xid, e.seq
      limit most
    ) e
    where e.kind in ('task.completed', 'task.revived') and not holdfast.is_counted(seen, e.xid)
      and (tenant is null or e.tenant_id = tenant)
  ),
  told as (
    select t.task_id, t.attempt, true as is_done
    from fresh
    cross join lateral unnest(fresh.task_ids, fresh.attempts) as t (task_id, attempt)
    where fresh.kind = 'task.completed'
    union all
    select t.task_id::bigint, null, false
    from fresh
    cross join lateral jsonb_array_elements_text(fresh.detail -> 'completed') as t (task_id)
    where fresh.kind = 'task.revived'
  ),
  known as materialized (
    select told.task_id, told.attempt, told.is_done, b.lane_id
    from told
    left join holdfast.body b on b.task_id = told.task_id
  )
  select known.task_id / 10000000000, known.lane_id, count(*)
  from known
  where known.lane_id is not null and known.is_done
  group by 1, 2
  union all
  select g.bucket, s.lane_ids[g.node_no + 1], sum(g.tasks)::bigint
  from (
    select known.task_id / 10000000000 as bucket, r.snapshot_id, w.node_no,
      sum(case when known.is_done then 1 else -1 end) as tasks
    from known
    cross join lateral (select * from holdfast.place(known.task_id) offset 0) w
    join holdfast.run r on r.run_id = w.run_id
    where known.lane_id is null
      and (not known.is_done or exists (
        select from holdfast.attempt a
        where a.task_id = known.task_id and a.attempt = known.attempt and a.state = 'c'
      ))
    group by 1, 2, 3
  ) g
  join holdfast.snapshot s on s.snapshot_id = g.snapshot_id
  group by 1, 2
$$;

-- Completed tasks of a tenant by lane: what was counted, and what so many events tell since. As the owner: behind a tenant's
-- wall every event and every task would be asked whose it is.
create function holdfast.completed_of(tenant int, most bigint) returns table (lane_id int, tasks bigint)
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select c.lane_id, sum(c.tasks)::bigint
  from (
    select c.lane_id, c.tasks
    from holdfast.lane l
    join holdfast.completed c on c.lane_id = l.lane_id
    where l.tenant_id = tenant
    union all
    select s.lane_id, s.tasks
    from holdfast.completed_since((select c from holdfast.counted c), tenant, most) s
  ) c
  where holdfast.is_for(tenant)
  group by c.lane_id
$$;

-- How many events came since completions were counted, to a bound.
create function holdfast.uncounted(most bigint) returns bigint
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select count(*)
  from (
    select
    from holdfast.event e
    where e.xid >= (select holdfast.uncounted_from(c) from holdfast.counted c)
    limit most
  ) e
$$;

-- Count what events tell since the last time. One at a time: others skip their turn, or wait for theirs. The lock comes
-- first: the statement behind it sees all that whoever held it saw. Also for a tenant, before it deletes what was counted:
-- it learns nothing by it.
create function holdfast.count_completed(is_patient boolean) returns boolean
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  before holdfast.counted;
begin
  if is_patient then
    select c.* into before from holdfast.counted c for update;
  else
    select c.* into before from holdfast.counted c for update skip locked;
  end if;
  if before.seen is null then
    return false;
  end if;
  with fresh as (
    insert into holdfast.completed as c (tenant_id, lane_id, bucket, tasks)
    select l.tenant_id, l.lane_id, s.bucket, sum(s.tasks)
    from holdfast.completed_since(before, null, null) s
    join holdfast.lane l on l.lane_id = s.lane_id
    group by 1, 2, 3
    on conflict (lane_id, bucket) do update
    set tasks = c.tasks + excluded.tasks
  )
  update holdfast.counted c
  set seen = pg_current_snapshot(), base = holdfast.event_base();
  return true;
end $$;

-- Count everything anew, from what is kept and not from events.
create function holdfast.recount_completed() returns void
  language plpgsql as $$
begin
  perform from holdfast.counted c for update;
  delete from holdfast.completed;
  with fresh as (
    insert into holdfast.completed (tenant_id, lane_id, bucket, tasks)
    select l.tenant_id, l.lane_id, s.bucket, sum(s.tasks)
    from holdfast.completed_between(0, 9223372036854775807) s
    join holdfast.lane l on l.lane_id = s.lane_id
    group by 1, 2, 3
  )
  insert into holdfast.counted (seen)
  values (pg_current_snapshot())
  on conflict (is_it) do update
  set seen = excluded.seen, base = excluded.base;
end $$;

-- How many tasks of some lanes are queued, each counted to a bound. As the owner: behind a tenant's wall each row would be
-- fetched to see whose it is, and a lane is of one tenant.
create function holdfast.queued_in(lanes int[], most bigint) returns table (lane_id int, tasks bigint)
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select l.lane_id, c.tasks
  from holdfast.lane l
  cross join lateral (
    select count(*) as tasks
    from (select from holdfast.live t where t.state = 'q' and t.lane_id = l.lane_id limit most) t
  ) c
  where l.lane_id = any(lanes) and holdfast.is_for(l.tenant_id)
$$;

-- As before, and with a block goes what was counted of it.
create or replace function holdfast.drop_block(which int) returns void language plpgsql as $$
begin
  delete from holdfast.idempotency i using holdfast.block b
  where b.block = which and i.task_id between b.first_id and b.last_id;
  delete from holdfast.note n using holdfast.block b
  where b.block = which and n.task_id between b.first_id and b.last_id;
  -- Effects and steps live as long as the task that last sent or kept them.
  delete from holdfast.effect e using holdfast.block b
  where b.block = which and e.task_id between b.first_id and b.last_id;
  delete from holdfast.step s using holdfast.block b
  where b.block = which and s.task_id between b.first_id and b.last_id;
  -- Nothing of this block is live, failed or canceled any more, so these are the stumbles of tasks that completed.
  delete from holdfast.failure f using holdfast.block b
  where b.block = which and f.task_id between b.first_id and b.last_id;
  delete from holdfast.run r using holdfast.block b
  where b.block = which and r.run_id between b.first_id and b.last_id;
  execute format('drop table if exists holdfast.body_%s, holdfast.attempt_%s, holdfast.node_%s', which, which, which);
  -- After the tables: who counted before them has committed, and who counts after them finds nothing.
  delete from holdfast.completed c using holdfast.block b
  where b.block = which and c.bucket between b.first_id / 10000000000 and b.last_id / 10000000000;
  delete from holdfast.block b where b.block = which;
end $$;

select holdfast.recount_completed();

-- The newest block that holds something before an id, of anybody, and where in it the ids of spans begin: what lists walk
-- through. As the owner: tenants do not see blocks, and pass over what others have in one step.
create function holdfast.block_before(before bigint, out first_id bigint, out middle_id bigint, out last_id bigint)
  returns setof record language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select b.first_id, (b.first_id + b.last_id) / 2 + 1, b.last_id
  from holdfast.block b
  where b.first_id < before
    and (
      exists (select from holdfast.live t where t.task_id >= b.first_id and t.task_id <= b.last_id and t.task_id < before)
      or exists (select from holdfast.ended e where e.task_id >= b.first_id and e.task_id <= b.last_id and e.task_id < before)
      or exists (select from holdfast.attempt a where a.task_id >= b.first_id and a.task_id <= b.last_id and a.task_id < before)
      or exists (select from holdfast.run r where r.run_id >= b.first_id and r.run_id <= b.last_id and r.run_id < before)
    )
  order by b.block desc
  limit 1
$$;

-- What failed or was canceled is counted by lane from this index alone.
drop index holdfast.ended_recent;
create index ended_recent on holdfast.ended (tenant_id, state, ended_at desc) include (lane_id);
