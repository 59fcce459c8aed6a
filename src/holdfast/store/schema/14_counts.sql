-- Counts of tasks by lane: completed ones, which are counted from events; queued, running and waiting ones, which are read
-- from the hot table up to a bound.

-- Counts of completed tasks, by lane and bucket of ids. They are exact, though no statement that enqueues, claims or
-- settles takes part in them: every completion is recorded by an event of its own transaction, and a pass adds up the
-- events that no pass has seen. A reader adds what came since. What a pass has seen is kept as a snapshot and not as
-- an event position: a transaction may commit later than others that began after it.
create table holdfast.completed (
  lane_id int not null,
  -- The id divided by 10^10: a block begins and ends with a bucket.
  bucket bigint not null,
  tenant_id int not null,
  tasks bigint not null,
  primary key (lane_id, bucket)
);

-- One row: what was counted into `completed`. These are the events that this snapshot saw of the epoch with this
-- base, and all events of earlier epochs.
create table holdfast.counted (
  is_only boolean primary key default true check (is_only),
  seen pg_snapshot not null,
  base bigint not null default holdfast.event_base()
);

-- The first event position from which some events were not counted.
create function holdfast.uncounted_from(c holdfast.counted) returns xid8
  language sql immutable parallel safe
  return (c.base + pg_snapshot_xmin(c.seen)::text::bigint)::text::xid8;

-- Whether an event was counted.
create function holdfast.is_counted(c holdfast.counted, place xid8) returns boolean
  language sql immutable parallel safe
  return place::text::bigint < c.base + 17592186044416 and pg_visible_in_snapshot(holdfast.event_transaction(place), c.seen);

-- Tasks with ids in a range that are completed now, by bucket and lane, from the attempts themselves. A node counts
-- in its present generation.
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
    cross join lateral (select * from holdfast.locate_task(a.task_id) offset 0) w
    join holdfast.run r on r.run_id = w.run_id
    left join holdfast.node n on n.run_id = w.run_id and n.node_no = w.node_no
    where a.state = 'c' and a.task_id between first_id and last_id and b.task_id is null
      and (w.item_no is not null or a.generation = coalesce(n.generation, 1))
    group by 1, 2, 3
  ) g
  join holdfast.snapshot s on s.snapshot_id = g.snapshot_id
  group by 1, 2
$$;

-- What events report that a snapshot did not see: completions, less those of completed nodes that a re-drive reset.
-- Of one tenant or of all; of the oldest `most` events or of all. A task that was deleted since has no lane and does
-- not count; a node that runs no task has no attempt.
create function holdfast.completed_since(seen holdfast.counted, tenant int, most bigint)
  returns table (bucket bigint, lane_id int, tasks bigint)
  language sql stable as $$
  with new_events as materialized (
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
  reported as (
    select t.task_id, t.attempt, true as is_done
    from new_events
    cross join lateral unnest(new_events.task_ids, new_events.attempts) as t (task_id, attempt)
    where new_events.kind = 'task.completed'
    union all
    select t.task_id::bigint, null, false
    from new_events
    cross join lateral jsonb_array_elements_text(new_events.detail -> 'completed') as t (task_id)
    where new_events.kind = 'task.revived'
  ),
  known as materialized (
    select reported.task_id, reported.attempt, reported.is_done, b.lane_id
    from reported
    left join holdfast.body b on b.task_id = reported.task_id
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
    cross join lateral (select * from holdfast.locate_task(known.task_id) offset 0) w
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

-- Completed tasks of a tenant by lane: what was counted, and what up to `most` events report since. Runs with its
-- owner's rights: behind row-level security every event and every task would be checked for its tenant.
create function holdfast.completed_by_lane(tenant int, most bigint) returns table (lane_id int, tasks bigint)
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
  where holdfast.may_act_for(tenant)
  group by c.lane_id
$$;

-- How many events came since the last count, up to `most`.
create function holdfast.uncounted_events(most bigint) returns bigint
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select count(*)
  from (
    select
    from holdfast.event e
    where e.xid >= (select holdfast.uncounted_from(c) from holdfast.counted c)
    limit most
  ) e
$$;

-- Count what events report since the last pass. One process at a time: another skips its pass, or waits if it is
-- patient. The lock is taken by a statement of its own, so the next one sees all that the previous holder counted.
-- Runs with its owner's rights, because a tenant has to count before it deletes; it learns nothing by it.
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
  with inserted as (
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

-- Count everything again, from what is stored and not from events.
create function holdfast.recount_completed() returns void
  language plpgsql as $$
begin
  perform from holdfast.counted c for update;
  delete from holdfast.completed;
  with inserted as (
    insert into holdfast.completed (tenant_id, lane_id, bucket, tasks)
    select l.tenant_id, l.lane_id, s.bucket, sum(s.tasks)
    from holdfast.completed_between(0, 9223372036854775807) s
    join holdfast.lane l on l.lane_id = s.lane_id
    group by 1, 2, 3
  )
  insert into holdfast.counted (seen)
  values (pg_current_snapshot())
  on conflict (is_only) do update
  set seen = excluded.seen, base = excluded.base;
end $$;

-- How many tasks of each of some lanes are queued, at most `most` each. Runs with its owner's rights: behind
-- row-level security each row would be fetched to check its tenant, and a lane belongs to one tenant.
create function holdfast.queued_by_lane(lanes int[], most bigint) returns table (lane_id int, tasks bigint)
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select l.lane_id, c.tasks
  from holdfast.lane l
  cross join lateral (
    select count(*) as tasks
    from (select from holdfast.live t where t.state = 'q' and t.lane_id = l.lane_id limit most) t
  ) c
  where l.lane_id = any(lanes) and holdfast.may_act_for(l.tenant_id)
$$;

-- Running, reserved and waiting tasks of a tenant by lane, at most `most` of each. Runs with its owner's rights, like
-- queued_by_lane().
create function holdfast.running_and_waiting_by_lane(tenant int, most int)
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
  where holdfast.may_act_for(tenant)
  group by f.lane_id, f.state, f.is_retrying
$$;

-- Nothing is counted yet.
select holdfast.recount_completed();
