-- Wake-ups over carriers other than PostgreSQL: an outbox of hints, written with the change that makes a task claimable.
-- The triggers that write it are off until `holdfast wake on`: without another carrier nothing on the hot table changes.

-- One row: whether hints are written, how many may be outstanding per queue, and what relays last found.
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

-- Outstanding hints: to be sent at send_at, and again later while their task still waits. A row goes once its task does
-- not wait any more. Small, and turned over often.
create table holdfast.hint (
  task_id bigint primary key,
  tenant_id int not null,
  queue_id int not null,
  send_at timestamptz not null default holdfast.instant(),
  sends int not null default 0 check (sends >= 0)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
create index hint_due on holdfast.hint (send_at);
create index hint_queue on holdfast.hint (queue_id);

-- How many more hints a queue may have. Transactions that do not see each other may overshoot by what each writes.
create function holdfast.hint_room(in_queue int) returns int
  language sql stable
  return (
    select w.hints_max - (
      select count(*)::int
      from (select from holdfast.hint h where h.queue_id = in_queue limit w.hints_max) h
    )
    from holdfast.wake w
  );

-- As the owner: whoever may make a task claimable may have it announced.
create function holdfast.hint_new() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into holdfast.hint (task_id, tenant_id, queue_id)
  select f.task_id, f.tenant_id, f.queue_id
  from (
    select n.task_id, n.tenant_id, l.queue_id,
      row_number() over (partition by l.queue_id order by n.priority, n.task_id) as place
    from fresh n
    join holdfast.lane l on l.lane_id = n.lane_id
    where n.state = 'q'
  ) f
  join (
    select r.queue_id, holdfast.hint_room(r.queue_id) as room
    from (select distinct l.queue_id from fresh n join holdfast.lane l on l.lane_id = n.lane_id) r
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
    and (holdfast.hint_room(l.queue_id) > 0 or exists (select from holdfast.hint h where h.task_id = new.task_id))
  on conflict (task_id) do update
  set send_at = excluded.send_at, sends = 0;
  return null;
end $$;

create trigger live_hint_new after insert on holdfast.live
  referencing new table as fresh
  for each statement execute function holdfast.hint_new();
create trigger live_hint_again after update of state on holdfast.live
  for each row when (new.state = 'q' and old.state <> 'q') execute function holdfast.hint_again();
alter table holdfast.live disable trigger live_hint_new;
alter table holdfast.live disable trigger live_hint_again;

-- Begin or stop to write hints. Only the owner of the hot table may.
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
