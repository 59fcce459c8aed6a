-- Epochs: which server this database is on. A database that was restored from a backup, copied, or promoted from a
-- replica may lack what was committed last, or share its past with another one that still runs. The first process
-- that notices begins an epoch: every sequence jumps past what may have been given out, events go on above every
-- position that may have been shown and, if the database is on another cluster or has another oid, its workers are
-- retired.
--
-- One row per epoch, the newest last; without an identity until a process has looked. An id belongs to the epoch in
-- which it was drawn: ids of spans from `first_span`, other ids from `first_task_id` up to `middle_id`, where the ids
-- of spans of that block begin.
create table holdfast.epoch (
  epoch int primary key check (epoch between 0 and 524287),
  began_at timestamptz not null default holdfast.instant(),
  cause text not null check (cause in ('created', 'restarted', 'promoted', 'copied', 'restored')),
  -- Part of the idempotency keys of effects: the same id drawn on two servers means two tasks.
  tag uuid not null default gen_random_uuid(),
  first_task_id bigint not null,
  middle_id bigint not null,
  first_span bigint not null,
  system_identifier bigint,
  timeline bigint,
  database_id bigint,
  started_at timestamptz
);
insert into holdfast.epoch (epoch, cause, first_task_id, middle_id, first_span) values (0, 'created', 0, 0, 0);

-- What identifies this server: the cluster, its timeline (a promotion or a point-in-time recovery begins a new one),
-- the database, and when the server was started (a copy of the files that is simply started keeps all the others).
-- What may not be read is null, and so is everything on a server that is not a primary. Runs with its owner's rights:
-- the caller need not be allowed to read these.
create function holdfast.server_identity(
  out system_identifier bigint, out timeline bigint, out database_id bigint, out started_at timestamptz
) returns record language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
  if pg_is_in_recovery() then
    return;
  end if;
  database_id := (select d.oid from pg_database d where d.datname = current_database());
  started_at := pg_postmaster_start_time();
  begin
    system_identifier := (select s.system_identifier from pg_control_system() s);
    -- Not pg_control_checkpoint(): its timeline is that of the last checkpoint, which may be before the promotion.
    timeline := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
  exception when insufficient_privilege or feature_not_supported or undefined_function then null;
  end;
end $$;

-- The newest epoch, and why it is not that of this server: null if it is, 'unbound' if no process has looked yet.
create function holdfast.current_epoch(out epoch int, out cause text) returns record
  language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select e.epoch, case
    when s.started_at is null then null
    when e.started_at is null then 'unbound'
    when s.system_identifier <> e.system_identifier then 'restored'
    when s.database_id <> e.database_id then 'copied'
    when s.timeline <> e.timeline then 'promoted'
    -- An embedded server belongs to one user and restarts often; its ids should stay short.
    when s.started_at <> e.started_at and current_setting('holdfast.embedded', true) is distinct from 'on' then 'restarted'
  end
  from holdfast.epoch e
  cross join holdfast.server_identity() s
  order by e.epoch desc
  limit 1
$$;

-- How far the ids of tasks and spans jump when a server restarted. A restarted server has lost nothing that was
-- acknowledged, but a started copy of its files looks the same, so the gap is more than a day's work. Every other
-- cause begins a new block.
create function holdfast.restart_gap() returns bigint language sql immutable parallel safe return 1000000000;

-- Make the block that an epoch will begin in. This is a transaction before begin_epoch(), because a sequence that
-- jumped cannot wait for its partitions to be committed. Does nothing where no block is needed, or the newest one is
-- unused.
create function holdfast.prepare_epoch() returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  why text;
  has_room boolean;
  is_fresh boolean;
begin
  perform pg_advisory_xact_lock(1752132979, 0);
  why := (select n.cause from holdfast.current_epoch() n);
  if why is null or why = 'unbound' then
    return;
  end if;
  perform pg_advisory_xact_lock(1752132966, 0);
  select t.last_value < b.first_id and s.last_value < (b.first_id + b.last_id) / 2 + 1,
    t.last_value + holdfast.restart_gap() < (b.first_id + b.last_id) / 2
      and s.last_value + holdfast.restart_gap() < b.last_id
  into is_fresh, has_room
  from holdfast.task_id t
  cross join holdfast.span s
  cross join (select * from holdfast.block b order by b.block desc limit 1) b;
  if not is_fresh and not (why = 'restarted' and has_room) then
    perform holdfast.begin_block();
  end if;
end $$;

-- Begin the epoch of this server, unless it has begun: one process does it, others wait and find it done. Returns the
-- epoch, and why it began if it began in this call.
create function holdfast.begin_epoch(out entered int, out why text, out retired int) returns record
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  here record;
  one record;
  newest_block holdfast.block;
  first_task bigint;
  first bigint;
  top bigint;
  stored bigint;
  gap bigint;
begin
  retired := 0;
  perform pg_advisory_xact_lock(1752132979, 0);
  select n.epoch, n.cause into entered, why from holdfast.current_epoch() n;
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

  -- Workers of the original may still run what is running here. There it goes on; here the attempts are lost. Their
  -- leases end as well: a worker that lost its connection looks for its leases by its id, without a token.
  if why in ('copied', 'restored') then
    update holdfast.live t
    set lease_token = gen_random_uuid(), lease_expires_at = least(t.lease_expires_at, holdfast.instant())
    where t.state = 'r';
    update holdfast.worker w
    set state = 'gone', ended_at = holdfast.instant()
    where w.state in ('active', 'draining', 'lost');
    get diagnostics retired = row_count;
  end if;

  -- Until this transaction ends, no other draws a span, counts completions or writes events.
  perform pg_advisory_xact_lock(1752132966, 0);
  perform pg_advisory_xact_lock(1752132967, 0);
  lock table holdfast.event, holdfast.counted in share row exclusive mode;

  select * into newest_block from holdfast.block b order by b.block desc limit 1;
  first_task := (select greatest(t.last_value + holdfast.restart_gap(), newest_block.first_id) from holdfast.task_id t);
  first := (
    select greatest(s.last_value + holdfast.restart_gap(), (newest_block.first_id + newest_block.last_id) / 2 + 1) from holdfast.span s
  );
  -- Nothing was drawn yet from a block that was made for this epoch.
  if (select t.last_value from holdfast.task_id t) < newest_block.first_id then
    first_task := newest_block.first_id;
  end if;
  if (select s.last_value from holdfast.span s) < (newest_block.first_id + newest_block.last_id) / 2 + 1 then
    first := (newest_block.first_id + newest_block.last_id) / 2 + 1;
  end if;
  perform setval('holdfast.task_id', greatest(first_task, 1), false), setval('holdfast.span', first, false);

  -- All other sequences jump by a gap, from the stored maximum if that is further: logical replication does not copy
  -- sequences.
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
  -- A shift by 44 bits leaves room for the transactions of fifty years.
  execute format(
    'create or replace function holdfast.event_base() returns bigint language sql stable parallel safe return %s::bigint',
    entered::bigint << 44
  );
  insert into holdfast.epoch (
    epoch, cause, first_task_id, middle_id, first_span, system_identifier, timeline, database_id, started_at
  )
  select entered, why, t.last_value, (newest_block.first_id + newest_block.last_id) / 2 + 1, s.last_value, here.system_identifier,
    here.timeline, here.database_id, here.started_at
  from holdfast.task_id t
  cross join holdfast.span s;
end $$;
