-- As before, but the leases of retired workers end as well. With another token alone, a worker of the old server that had
-- lost its connection found its task again as a claim whose answer got lost, and settled it; over HTTP it renewed it.
create or replace function holdfast.begin_epoch(out entered int, out why text, out retired int) returns record
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  here record;
  one record;
  fresh holdfast.block;
  first_task bigint;
  first bigint;
  top bigint;
  stored bigint;
  gap bigint;
begin
  retired := 0;
  perform pg_advisory_xact_lock(1752132979, 0);
  select n.epoch, n.cause into entered, why from holdfast.epoch_now() n;
  select * into here from holdfast.server_identity();
  if why is null then
    return;
  end if;
  if why = 'unbound' then
    update holdfast.epoch e
    set system_identifier = here.system_identifier, timeline = here.timeline, database_id = here.database_id,
      started_at = here.started_at
    where e.epoch = entered;
    why := null;
    return;
  end if;

  -- What old workers hold in a copy they may hold in the original as well: there it goes on, here it is lost.
  if why in ('copied', 'restored') then
    update holdfast.live t
    set lease_token = gen_random_uuid(), lease_expires_at = least(t.lease_expires_at, holdfast.instant())
    where t.state = 'r';
    update holdfast.worker w
    set state = 'gone', ended_at = holdfast.instant()
    where w.state in ('active', 'draining', 'lost');
    get diagnostics retired = row_count;
  end if;

  -- Nobody draws a span, counts completions or writes events meanwhile.
  perform pg_advisory_xact_lock(1752132966, 0);
  perform pg_advisory_xact_lock(1752132967, 0);
  lock table holdfast.event, holdfast.counted in share row exclusive mode;

  select * into fresh from holdfast.block b order by b.block desc limit 1;
  first_task := (select greatest(t.last_value + holdfast.restart_gap(), fresh.first_id) from holdfast.task_id t);
  first := (
    select greatest(s.last_value + holdfast.restart_gap(), (fresh.first_id + fresh.last_id) / 2 + 1) from holdfast.span s
  );
  -- In a block of its own nothing was drawn yet.
  if (select t.last_value from holdfast.task_id t) < fresh.first_id then
    first_task := fresh.first_id;
  end if;
  if (select s.last_value from holdfast.span s) < (fresh.first_id + fresh.last_id) / 2 + 1 then
    first := (fresh.first_id + fresh.last_id) / 2 + 1;
  end if;
  perform setval('holdfast.task_id', greatest(first_task, 1), false), setval('holdfast.span', first, false);

  -- All others jump by a gap, from what is stored if that is further: a replica by logical replication has no sequences.
  for one in
    select c.oid::regclass as sequence, s.seqmax, s.seqmax > 2147483647 as is_long,
      (
        select format('select max(%I) from %s', a.attname, d.refobjid::regclass)
        from pg_depend d
        join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
        join pg_index i on i.indrelid = d.refobjid and i.indkey[0] = a.attnum and i.indpred is null
        where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'i'
        limit 1
      ) as newest
    from pg_class c
    join pg_sequence s on s.seqrelid = c.oid
    where c.relnamespace = 'holdfast'::regnamespace and c.relname not in ('task_id', 'span')
  loop
    execute format('select last_value from %s', one.sequence) into top;
    if one.newest is not null then
      execute one.newest into stored;
      top := greatest(top, stored);
    end if;
    gap := case
      when one.is_long then case why when 'restarted' then 1000000 else 1000000000 end
      else 10000
    end;
    perform setval(one.sequence, top + least(gap, (one.seqmax - top) / 2));
  end loop;

  entered := entered + 1;
  -- A shift by 44 bits: more transactions than a server makes in fifty years.
  execute format(
    'create or replace function holdfast.event_base() returns bigint language sql stable parallel safe return %s::bigint',
    entered::bigint << 44
  );
  insert into holdfast.epoch (
    epoch, cause, first_task_id, middle_id, first_span, system_identifier, timeline, database_id, started_at
  )
  select entered, why, t.last_value, (fresh.first_id + fresh.last_id) / 2 + 1, s.last_value, here.system_identifier,
    here.timeline, here.database_id, here.started_at
  from holdfast.task_id t
  cross join holdfast.span s;
end $$;
