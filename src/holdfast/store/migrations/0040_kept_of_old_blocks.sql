-- Old blocks keep what is still needed and nothing else. One open run, or one failure that was not dealt with, used to keep
-- every row of its block, and an open run every block since. Now the rows that are needed are copied into new partitions for
-- the same ids, and the old ones are dropped: ids, and every statement that goes by them, stay as they are.

-- Whether a block was copied: what is in it is needed, or was when it was copied.
alter table holdfast.block add column is_kept boolean not null default false;

-- The ids of a block that must stay, though its time is over: live tasks; failures that were not dealt with, or ended or
-- were changed lately; runs that are open, ended lately or may be run again, with their items, and with what they started or
-- were started by. Of a block that was copied also tasks that completed lately.
create function holdfast.needed_of(which int, promised timestamptz) returns int8multirange
  language sql stable set search_path = pg_catalog, pg_temp as $$
  with recursive b as materialized (
    select b.first_id, b.last_id, b.is_kept from holdfast.block b where b.block = which
  ),
  by_itself as materialized (
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
    join holdfast.dead_letter d on d.run_id is not null -- also of a later block: its run may have been started by one of this
    where d.state in ('open', 'retry_requested', 'retrying')
      or d.changed_at >= promised
      or (
        d.state = 'ignored' and holdfast.rests_failed(d.task_id, d.run_id, d.node_no)
        and not exists (
          select from holdfast.dead_letter n where n.task_id = d.task_id and n.dead_letter_id > d.dead_letter_id
        )
      )
  ),
  above as (
    select r.run_id, r.parent_run_id
    from by_itself
    join holdfast.run r on r.run_id = by_itself.run_id
    union
    select r.run_id, r.parent_run_id
    from above
    join holdfast.run r on r.run_id = above.parent_run_id
  ),
  kept as (
    select above.run_id
    from above
    union
    select r.run_id
    from kept
    join holdfast.run r on r.parent_run_id = kept.run_id
  ),
  ids as (
    select int8range(r.run_id, r.run_id + r.nodes, '[]') as span
    from b
    cross join kept
    join holdfast.run r on r.run_id = kept.run_id and r.run_id between b.first_id and b.last_id
    union all
    select int8range(s.items_first, s.items_first + s.items, '[)')
    from b
    join holdfast.item_span s on s.items_first between b.first_id and b.last_id
    join kept on kept.run_id = s.run_id
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

-- Whether a block holds anything that is not needed. One that was not copied does.
create function holdfast.has_unneeded(which int, promised timestamptz) returns boolean
  language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  b holdfast.block;
  kept int8multirange;
begin
  select * into b from holdfast.block k where k.block = which;
  if not b.is_kept then
    return true;
  end if;
  kept := holdfast.needed_of(which, promised);
  return kept = '{}'
    or exists (select from holdfast.body x where x.task_id between b.first_id and b.last_id and not x.task_id <@ kept)
    or exists (select from holdfast.attempt x where x.task_id between b.first_id and b.last_id and not x.task_id <@ kept)
    or exists (select from holdfast.run x where x.run_id between b.first_id and b.last_id and not x.run_id <@ kept);
end $$;

-- Drop what is not needed of a block whose time is over: all of it, or all but what must stay, if that is not more than so
-- many ids. Answers 'dropped', 'copied' or 'left'; 'in use' where something was run again meanwhile, and then nothing may be
-- committed. Ends are taken away before it is asked again what is needed: who runs something again takes the same end.
create function holdfast.fold_block(which int, promised timestamptz, most bigint) returns text
  language plpgsql as $$
declare
  b holdfast.block;
  kept int8multirange := holdfast.needed_of(which, promised);
  part text;
  key text;
begin
  select * into b from holdfast.block k where k.block = which;
  if (select sum(upper(u) - lower(u)) from unnest(kept) u) > most then
    return 'left';
  end if;
  delete from holdfast.run r
  where r.run_id between b.first_id and b.last_id and r.state <> 'o' and not r.run_id <@ kept;
  delete from holdfast.ended e
  where (e.task_id between b.first_id and b.last_id and not e.task_id <@ kept)
    or (e.run_id between b.first_id and b.last_id and not e.run_id <@ kept);
  delete from holdfast.dead_letter d
  where (d.task_id between b.first_id and b.last_id and not d.task_id <@ kept)
    or (d.run_id between b.first_id and b.last_id and not d.run_id <@ kept);
  if not holdfast.needed_of(which, promised) <@ kept then
    return 'in use';
  end if;
  if kept = '{}' then
    perform holdfast.drop_block(which);
    return 'dropped';
  end if;

  delete from holdfast.idempotency i where i.task_id between b.first_id and b.last_id and not i.task_id <@ kept;
  delete from holdfast.note n where n.task_id between b.first_id and b.last_id and not n.task_id <@ kept;
  delete from holdfast.dispatched d where d.task_id between b.first_id and b.last_id and not d.task_id <@ kept;
  delete from holdfast.effect e where e.task_id between b.first_id and b.last_id and not e.task_id <@ kept;
  delete from holdfast.step s where s.task_id between b.first_id and b.last_id and not s.task_id <@ kept;
  delete from holdfast.failure f where f.task_id between b.first_id and b.last_id and not f.task_id <@ kept;

  -- Nobody counts, and nobody reads or writes history, until the copy is in place: that takes as long as it is large. What
  -- was copied before is small, and loses single rows.
  perform holdfast.count_completed(true);
  if not b.is_kept then
    lock table holdfast.body, holdfast.attempt, holdfast.node in access exclusive mode;
    perform holdfast.count_completed(true);
  end if;
  foreach part in array array['body', 'attempt', 'node'] loop
    key := case part when 'node' then 'run_id' else 'task_id' end;
    if b.is_kept then
      execute format('delete from holdfast.%1$s_%2$s k where not k.%3$I <@ $1', part, which, key) using kept;
      continue;
    end if;
    execute format('create table holdfast.%s_kept (like holdfast.%s including all)', part, part);
    execute format(
      'insert into holdfast.%1$s_kept select k.* from unnest($1) u'
      ' cross join lateral (select k.* from holdfast.%1$s_%2$s k where k.%3$I >= lower(u) and k.%3$I < upper(u) offset 0) k',
      part, which, key
    ) using kept;
    execute format('drop table holdfast.%s_%s', part, which);
    execute format('alter table holdfast.%s_kept rename to %s_%s', part, part, which);
    if part = 'attempt' and b.is_shared then
      perform holdfast.share_block(which);
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
