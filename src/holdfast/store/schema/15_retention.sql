-- Blocks of ids, and retention.
--
-- Ids grow. Each day (or each `retain`) begins a new block of them, and a block is one partition of `body`, `attempt`
-- and `node`. Retention drops a block as a whole, or copies what must stay and drops the rest.

-- One row per block. The ids of a block are split in halves: tasks that are enqueued one by one take theirs from the
-- lower half, spans (runs with their nodes, and items) from the upper half.
create table holdfast.block (
  block int primary key,
  first_id bigint not null,
  last_id bigint not null,
  began_at timestamptz not null default holdfast.instant(),
  -- It began with several tenants, so its completed attempts have an index by tenant.
  is_shared boolean not null default false,
  -- Retention copied what must stay of it, and dropped the rest.
  is_kept boolean not null default false
);

-- Completions are the hot path, and an index of them by tenant costs a tenth of a settlement. So only the blocks that
-- began with several tenants have it. A block that began with one tenant holds little of others: what they did until
-- the next block began.
create function holdfast.index_block_by_tenant(which int) returns void language plpgsql as $$
begin
  execute format('create index attempt_%s_newest on holdfast.attempt_%s (tenant_id, task_id) where state = ''c''', which, which);
end $$;

-- Begin a block; returns its number. A block has more ids than a day can use; the first one is smaller, so that the
-- ids of a new installation are shorter.
create function holdfast.begin_block() returns int language plpgsql as $$
declare
  number int := coalesce((select max(b.block) + 1 from holdfast.block b), 0);
  first bigint := coalesce((select max(b.last_id) + 1 from holdfast.block b), 0);
  size constant bigint := case number when 0 then 10000000000 else 100000000000 end;
  is_shared constant boolean := (select count(*) > 1 from holdfast.tenant);
  part text;
begin
  -- Created separately and then attached: attaching waits for no reader or writer, `partition of` would wait for all.
  foreach part in array array['body', 'attempt', 'node'] loop
    execute format('create table holdfast.%s_%s (like holdfast.%s including all)', part, number, part);
    if part = 'attempt' and is_shared then
      perform holdfast.index_block_by_tenant(number);
    end if;
    execute format('alter table holdfast.%s attach partition holdfast.%s_%s for values from (%s) to (%s)',
      part, part, number, first, first + size);
  end loop;
  insert into holdfast.block (block, first_id, last_id, is_shared) values (number, first, first + size - 1, is_shared);
  return number;
end $$;

-- Drop a block of which nothing is needed any more, with all that belongs to its tasks.
create function holdfast.drop_block(which int) returns void language plpgsql as $$
begin
  delete from holdfast.idempotency i using holdfast.block b
  where b.block = which and i.task_id between b.first_id and b.last_id;
  delete from holdfast.note n using holdfast.block b
  where b.block = which and n.task_id between b.first_id and b.last_id;
  delete from holdfast.dispatched d using holdfast.block b
  where b.block = which and d.task_id between b.first_id and b.last_id;
  -- Effects and steps are kept as long as the task that last sent or stored them.
  delete from holdfast.effect e using holdfast.block b
  where b.block = which and e.task_id between b.first_id and b.last_id;
  delete from holdfast.step s using holdfast.block b
  where b.block = which and s.task_id between b.first_id and b.last_id;
  -- Nothing of this block is live, failed or canceled any more, so these are failed attempts of completed tasks.
  delete from holdfast.failure f using holdfast.block b
  where b.block = which and f.task_id between b.first_id and b.last_id;
  delete from holdfast.run r using holdfast.block b
  where b.block = which and r.run_id between b.first_id and b.last_id;
  execute format('drop table if exists holdfast.body_%s, holdfast.attempt_%s, holdfast.node_%s', which, which, which);
  -- After dropping the tables: a pass that counted before has committed, and one that counts later finds nothing.
  delete from holdfast.completed c using holdfast.block b
  where b.block = which and c.bucket between b.first_id / 10000000000 and b.last_id / 10000000000;
  delete from holdfast.block b where b.block = which;
end $$;

-- The ids of a block that must stay although its time is over: live tasks; failures that were not dealt with, or that
-- ended or changed after `promised`; runs that are open, ended lately or may be run again, with their items, their
-- ancestors and their descendants. For a block that was copied before, also tasks that completed lately.
create function holdfast.needed_ids(which int, promised timestamptz) returns int8multirange
  language sql stable set search_path = pg_catalog, pg_temp as $$
  with recursive b as materialized (
    select b.first_id, b.last_id, b.is_kept from holdfast.block b where b.block = which
  ),
  needed_by_itself as materialized (
    select r.run_id
    from b
    join holdfast.run r on r.state = 'o' and r.run_id <= b.last_id
    union
    select r.run_id
    from b
    join holdfast.run r on r.run_id between b.first_id and b.last_id and r.ended_at >= promised
    union
    select s.run_id
    from b
    join holdfast.item_span s on s.items_first between b.first_id and b.last_id
    join holdfast.run r on r.run_id = s.run_id and r.ended_at >= promised
    union
    select d.run_id
    from b
    -- Also letters of later blocks: a run of this block may be the ancestor of their runs.
    join holdfast.dead_letter d on d.run_id is not null
    where d.state in ('open', 'retry_requested', 'retrying')
      or d.changed_at >= promised
      or (
        d.state = 'ignored' and holdfast.is_failed_at_rest(d.task_id, d.run_id, d.node_no)
        and not exists (
          select from holdfast.dead_letter n where n.task_id = d.task_id and n.dead_letter_id > d.dead_letter_id
        )
      )
  ),
  ancestors as (
    select r.run_id, r.parent_run_id
    from needed_by_itself
    join holdfast.run r on r.run_id = needed_by_itself.run_id
    union
    select r.run_id, r.parent_run_id
    from ancestors
    join holdfast.run r on r.run_id = ancestors.parent_run_id
  ),
  needed_runs as (
    select ancestors.run_id
    from ancestors
    union
    select r.run_id
    from needed_runs
    join holdfast.run r on r.parent_run_id = needed_runs.run_id
  ),
  ids as (
    select int8range(r.run_id, r.run_id + r.nodes, '[]') as span
    from b
    cross join needed_runs
    join holdfast.run r on r.run_id = needed_runs.run_id and r.run_id between b.first_id and b.last_id
    union all
    select int8range(s.items_first, s.items_first + s.items, '[)')
    from b
    join holdfast.item_span s on s.items_first between b.first_id and b.last_id
    join needed_runs on needed_runs.run_id = s.run_id
    union all
    select int8range(t.task_id, t.task_id, '[]')
    from b
    join holdfast.live t on t.task_id between b.first_id and b.last_id
    union all
    select int8range(e.task_id, e.task_id, '[]')
    from b
    join holdfast.ended e on e.task_id between b.first_id and b.last_id
    where e.ended_at >= promised
      or (e.state = 'f' and e.has_letter is not true)
      or exists (
        select
        from holdfast.dead_letter d
        where d.task_id = e.task_id
          and (
            d.state in ('open', 'retry_requested', 'retrying')
            or (d.state = 'ignored' and e.state = 'f' and not exists (
              select from holdfast.dead_letter n where n.task_id = d.task_id and n.dead_letter_id > d.dead_letter_id
            ))
            or d.changed_at >= promised
          )
      )
    union all
    select int8range(a.task_id, a.task_id, '[]')
    from b
    join holdfast.attempt a on a.task_id between b.first_id and b.last_id
    where b.is_kept and a.ended_at >= promised
  )
  select coalesce(range_agg(ids.span), '{}')
  from ids
$$;

-- Whether a block holds anything that is not needed. A block that was not copied does.
create function holdfast.has_unneeded(which int, promised timestamptz) returns boolean
  language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  b holdfast.block;
  needed int8multirange;
begin
  select * into b from holdfast.block k where k.block = which;
  if not b.is_kept then
    return true;
  end if;
  needed := holdfast.needed_ids(which, promised);
  return needed = '{}'
    or exists (select from holdfast.body x where x.task_id between b.first_id and b.last_id and not x.task_id <@ needed)
    or exists (select from holdfast.attempt x where x.task_id between b.first_id and b.last_id and not x.task_id <@ needed)
    or exists (select from holdfast.run x where x.run_id between b.first_id and b.last_id and not x.run_id <@ needed);
end $$;

-- Drop what is not needed of a block whose time is over: all of it, or all but the ids that must stay, if these are
-- not more than `most`. Needed rows are copied into new partitions for the same ids, so every statement that goes by
-- ids stays valid. Returns 'dropped', 'copied' or 'left'; 'in use' if something was run again meanwhile, and then the
-- caller must roll back. The ends are deleted before it is computed again what is needed: a re-drive takes the same
-- rows.
create function holdfast.compact_block(which int, promised timestamptz, most bigint) returns text
  language plpgsql as $$
declare
  b holdfast.block;
  needed int8multirange := holdfast.needed_ids(which, promised);
  part text;
  key text;
begin
  select * into b from holdfast.block k where k.block = which;
  if (select sum(upper(u) - lower(u)) from unnest(needed) u) > most then
    return 'left';
  end if;
  delete from holdfast.run r
  where r.run_id between b.first_id and b.last_id and r.state <> 'o' and not r.run_id <@ needed;
  delete from holdfast.ended e
  where (e.task_id between b.first_id and b.last_id and not e.task_id <@ needed)
    or (e.run_id between b.first_id and b.last_id and not e.run_id <@ needed);
  delete from holdfast.dead_letter d
  where (d.task_id between b.first_id and b.last_id and not d.task_id <@ needed)
    or (d.run_id between b.first_id and b.last_id and not d.run_id <@ needed);
  if not holdfast.needed_ids(which, promised) <@ needed then
    return 'in use';
  end if;
  if needed = '{}' then
    perform holdfast.drop_block(which);
    return 'dropped';
  end if;

  delete from holdfast.idempotency i where i.task_id between b.first_id and b.last_id and not i.task_id <@ needed;
  delete from holdfast.note n where n.task_id between b.first_id and b.last_id and not n.task_id <@ needed;
  delete from holdfast.dispatched d where d.task_id between b.first_id and b.last_id and not d.task_id <@ needed;
  delete from holdfast.effect e where e.task_id between b.first_id and b.last_id and not e.task_id <@ needed;
  delete from holdfast.step s where s.task_id between b.first_id and b.last_id and not s.task_id <@ needed;
  delete from holdfast.failure f where f.task_id between b.first_id and b.last_id and not f.task_id <@ needed;

  -- Until the copy is in place no process counts, reads or writes history; how long that takes depends on its size. A
  -- block that was copied before is small, so single rows are deleted from it.
  perform holdfast.count_completed(true);
  if not b.is_kept then
    lock table holdfast.body, holdfast.attempt, holdfast.node in access exclusive mode;
    perform holdfast.count_completed(true);
  end if;
  foreach part in array array['body', 'attempt', 'node'] loop
    key := case part when 'node' then 'run_id' else 'task_id' end;
    if b.is_kept then
      execute format('delete from holdfast.%1$s_%2$s k where not k.%3$I <@ $1', part, which, key) using needed;
      continue;
    end if;
    execute format('create table holdfast.%s_kept (like holdfast.%s including all)', part, part);
    execute format(
      'insert into holdfast.%1$s_kept select k.* from unnest($1) u'
      ' cross join lateral (select k.* from holdfast.%1$s_%2$s k where k.%3$I >= lower(u) and k.%3$I < upper(u) offset 0) k',
      part, which, key
    ) using needed;
    execute format('drop table holdfast.%s_%s', part, which);
    execute format('alter table holdfast.%s_kept rename to %s_%s', part, part, which);
    if part = 'attempt' and b.is_shared then
      perform holdfast.index_block_by_tenant(which);
    end if;
    execute format('alter table holdfast.%s attach partition holdfast.%s_%s for values from (%s) to (%s)',
      part, part, which, b.first_id, b.last_id + 1);
  end loop;
  delete from holdfast.completed c where c.bucket between b.first_id / 10000000000 and b.last_id / 10000000000;
  insert into holdfast.completed (tenant_id, lane_id, bucket, tasks)
  select l.tenant_id, l.lane_id, s.bucket, sum(s.tasks)
  from holdfast.completed_between(b.first_id, b.last_id) s
  join holdfast.lane l on l.lane_id = s.lane_id
  group by 1, 2, 3;
  update holdfast.block k set is_kept = true where k.block = which;
  return 'copied';
end $$;

-- The first block, with the ids of its spans in the upper half.
select holdfast.begin_block();
select setval('holdfast.span', (b.first_id + b.last_id) / 2 + 1, false) from holdfast.block b;
