-- Webhooks, which deliver events to URLs; and wake-ups over carriers other than PostgreSQL.

-- A webhook. Events up to `cursor` were delivered or filtered out. The lease says which process delivers now: its
-- token is a guard of every write, so a process that lost the lease moves nothing. `failures` counts those of the
-- event after the cursor. Secrets are stored in plain text because they sign; no interface shows them again.
create table holdfast.webhook (
  webhook_id int generated always as identity primary key,
  tenant_id int not null references holdfast.tenant,
  name text not null check (name ~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$'),
  url text not null,
  -- Filters; null: all.
  kinds text[],
  queues text[],
  actions text[],
  secret text not null,
  old_secret text,
  old_secret_until timestamptz,
  cursor text not null,
  created_at timestamptz not null default holdfast.instant(),
  created_by text not null,
  due_at timestamptz not null default holdfast.instant(),
  lease_token uuid,
  lease_expires_at timestamptz,
  delivered bigint not null default 0,
  delivered_at timestamptz,
  failures int not null default 0 check (failures >= 0),
  failed_at timestamptz,
  last_error text,
  paused_at timestamptz,
  paused_by text,
  paused_reason text,
  unique (tenant_id, name),
  constraint webhook_lease check ((lease_token is null) = (lease_expires_at is null)),
  constraint webhook_pause check ((paused_at is null) = (paused_by is null) and (paused_at is null or lease_token is null)),
  constraint webhook_secrets check ((old_secret is null) = (old_secret_until is null))
) with (fillfactor = 50);

-- Wake-ups over other carriers need an outbox of hints, written by triggers in the transaction that makes a task
-- claimable. The triggers are disabled until `holdfast wake on`: without another carrier the hot table pays nothing.

-- One row: whether hints are written, how many may be outstanding per queue, and what the relays last found.
create table holdfast.wake (
  is_only boolean primary key default true check (is_only),
  is_on boolean not null default false,
  hints_max int not null default 100 check (hints_max between 1 and 100000),
  carrier text not null default '',
  away_since timestamptz,
  away_detail text not null default '',
  constraint wake_away check (away_since is not null or away_detail = '')
);
insert into holdfast.wake default values;

-- Outstanding hints: to be sent at send_at, and again later while the task still waits. The row is deleted once its
-- task is no longer queued. The table is small and changes often.
create table holdfast.hint (
  task_id bigint primary key,
  tenant_id int not null,
  queue_id int not null,
  send_at timestamptz not null default holdfast.instant(),
  sends int not null default 0 check (sends >= 0)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
create index hint_due on holdfast.hint (send_at);
create index hint_queue on holdfast.hint (queue_id);

-- How many more hints a queue may have. Concurrent transactions may exceed the limit by what each of them writes.
create function holdfast.remaining_hints(in_queue int) returns int
  language sql stable
  return (
    select w.hints_max - (
      select count(*)::int
      from (select from holdfast.hint h where h.queue_id = in_queue limit w.hints_max) h
    )
    from holdfast.wake w
  );

-- The triggers run with their owner's rights: a role that may make a task claimable may also announce it.
create function holdfast.hint_new() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into holdfast.hint (task_id, tenant_id, queue_id)
  select f.task_id, f.tenant_id, f.queue_id
  from (
    select n.task_id, n.tenant_id, l.queue_id,
      row_number() over (partition by l.queue_id order by n.priority, n.task_id) as place
    from inserted n
    join holdfast.lane l on l.lane_id = n.lane_id
    where n.state = 'q'
  ) f
  join (
    select r.queue_id, holdfast.remaining_hints(r.queue_id) as room
    from (select distinct l.queue_id from inserted n join holdfast.lane l on l.lane_id = n.lane_id) r
  ) r on r.queue_id = f.queue_id
  where f.place <= r.room
  on conflict (task_id) do update
  set send_at = excluded.send_at, sends = 0;
  return null;
end $$;

create function holdfast.hint_again() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into holdfast.hint (task_id, tenant_id, queue_id)
  select new.task_id, new.tenant_id, l.queue_id
  from holdfast.lane l
  where l.lane_id = new.lane_id
    and (holdfast.remaining_hints(l.queue_id) > 0 or exists (select from holdfast.hint h where h.task_id = new.task_id))
  on conflict (task_id) do update
  set send_at = excluded.send_at, sends = 0;
  return null;
end $$;

create trigger live_hint_new after insert on holdfast.live
  referencing new table as inserted
  for each statement execute function holdfast.hint_new();
create trigger live_hint_again after update of state on holdfast.live
  for each row when (new.state = 'q' and old.state <> 'q') execute function holdfast.hint_again();
alter table holdfast.live disable trigger live_hint_new;
alter table holdfast.live disable trigger live_hint_again;

-- Begin or stop writing hints. Only the owner of the hot table may.
create function holdfast.write_hints(wanted boolean, most int) returns void language plpgsql as $$
begin
  if wanted then
    alter table holdfast.live enable trigger live_hint_new;
    alter table holdfast.live enable trigger live_hint_again;
  else
    alter table holdfast.live disable trigger live_hint_new;
    alter table holdfast.live disable trigger live_hint_again;
    delete from holdfast.hint;
  end if;
  update holdfast.wake
  set is_on = wanted, hints_max = coalesce(most, hints_max), away_since = null, away_detail = '';
end $$;
