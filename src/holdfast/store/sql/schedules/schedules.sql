-- name: create_schedule(tenant_id, name, origin, kind, target, cron?, every_seconds?, timezone, overlap, missed,
--   max_waiting, queue?, policy_id?, priority?, tags?, input, wants_time, next_at, max_active?) -> value?
-- Insert a new schedule. Returns no row, and changes nothing, if the name is taken.
with inserted as (
  insert into holdfast.schedule (
    tenant_id, name, origin, kind, target, cron, every_seconds, timezone, overlap, missed, max_waiting, queue,
    policy_id, priority, tags, input, wants_time, max_active, next_at, look_at
  )
  values (@tenant_id, @name, @origin, @kind::text::"char", @target, @cron, @every_seconds, @timezone, @overlap, @missed, @max_waiting, @queue, @policy_id, @priority, @tags, @input, @wants_time, @max_active, @next_at, @next_at)
  on conflict (tenant_id, name) do nothing
  returning schedule_id, tenant_id, name, origin
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'schedule.created', '{}', '{}', jsonb_build_object('schedule', name, 'actor', origin)
  from inserted
)
select schedule_id
from inserted;

-- name: change_schedule(tenant_id, name, origin, kind, target, cron?, every_seconds?, timezone, overlap, missed,
--   max_waiting, queue?, policy_id?, priority?, tags?, input, wants_time, next_at, max_active?) -> value?
-- Update a schedule to the declaration of its own origin; a pause stays. The next slot is computed again only if the
-- timing changed, so that repeating a declaration loses nothing. The next pass processes it, because a slot may wait.
with changed as (
  update holdfast.schedule s
  set kind = @kind::text::"char", target = @target, cron = @cron, every_seconds = @every_seconds, timezone = @timezone, overlap = @overlap, missed = @missed,
    max_waiting = @max_waiting, queue = @queue, policy_id = @policy_id, priority = @priority, tags = @tags, input = @input, wants_time = @wants_time,
    max_active = @max_active,
    next_at = case when (s.cron, s.every_seconds, s.timezone) is distinct from (@cron, @every_seconds, @timezone) then @next_at else s.next_at end,
    look_at = holdfast.instant(), counted_at = holdfast.instant(), trouble = null, revision = s.revision + 1
  where s.tenant_id = @tenant_id and s.name = @name and s.origin = @origin
    and (s.kind, s.target, s.cron, s.every_seconds, s.timezone, s.overlap, s.missed, s.max_waiting, s.queue,
      s.policy_id, s.priority, s.tags, s.input, s.wants_time, s.max_active)
      is distinct from (@kind::text::"char", @target, @cron, @every_seconds, @timezone, @overlap, @missed, @max_waiting::smallint, @queue, @policy_id, @priority::smallint, @tags::text[],
      @input::bytea, @wants_time::boolean, @max_active::int)
  returning s.schedule_id, s.tenant_id, s.name, s.origin
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'schedule.changed', '{}', '{}', jsonb_build_object('schedule', name, 'actor', origin)
  from changed
)
select schedule_id
from changed;

-- name: schedule_origin(tenant_id, name) -> value?
-- Return the origin of a schedule.
select origin
from holdfast.schedule
where tenant_id = @tenant_id and name = @name;

-- name: database_time() -> value
-- Return the current time of the database.
select holdfast.instant();

-- name: due_schedules(limit) -> rows
-- nullable: cron, every_seconds, queue, policy_id, priority, tags, forgotten_until, paused_by, paused_reason,
--   max_active
-- Return schedules to process: a slot is due, one waits, or the clock was set back since the next one was computed.
select s.schedule_id, s.tenant_id, s.name, s.kind::text as kind, s.target, s.cron, s.every_seconds, s.timezone,
  s.overlap, s.missed, s.max_waiting, s.queue, s.policy_id, s.priority, s.tags, s.input, s.wants_time, s.next_at,
  s.counted_at, s.forgotten_until, s.paused_by, s.paused_reason, s.revision, s.max_active, holdfast.instant() as now
from holdfast.schedule s
where s.look_at <= holdfast.instant() or s.counted_at > holdfast.instant()
order by s.look_at
limit @limit;

-- name: find_schedule(tenant_id, name) -> row?
-- nullable: cron, every_seconds, queue, policy_id, priority, tags, forgotten_until, paused_by, paused_reason,
--   max_active
-- Return one schedule by name.
select s.schedule_id, s.tenant_id, s.name, s.kind::text as kind, s.target, s.cron, s.every_seconds, s.timezone,
  s.overlap, s.missed, s.max_waiting, s.queue, s.policy_id, s.priority, s.tags, s.input, s.wants_time, s.next_at,
  s.counted_at, s.forgotten_until, s.paused_by, s.paused_reason, s.revision, s.max_active, holdfast.instant() as now
from holdfast.schedule s
where s.tenant_id = @tenant_id and s.name = @name;

-- name: take_schedule(schedule_id, revision) -> row?
-- nullable: forgotten_until, paused_by, paused_reason
-- Lock a schedule for a decision; skip it if another process has locked it. The revision is the guard: nothing fires by
-- rules that changed since they were read. Returns the columns that may have changed.
select s.next_at, s.counted_at, s.forgotten_until, s.paused_by, s.paused_reason, holdfast.instant() as now
from holdfast.schedule s
where s.schedule_id = @schedule_id and s.revision = @revision
for no key update of s skip locked;

-- name: hold_schedule(schedule_id, revision) -> row?
-- nullable: forgotten_until, paused_by, paused_reason
-- Like take_schedule, for an operator's command: it waits for the lock.
select s.next_at, s.counted_at, s.forgotten_until, s.paused_by, s.paused_reason, holdfast.instant() as now
from holdfast.schedule s
where s.schedule_id = @schedule_id and s.revision = @revision
for no key update of s;

-- name: close_firings(schedule_id) -> nothing
-- Mark firings as over whose task or run is no longer live. Requires the schedule's lock.
update holdfast.slot f
set is_over = true
where f.schedule_id = @schedule_id and f.state = 'f' and not f.is_over
  and not exists (select from holdfast.live t where t.task_id = f.task_id)
  and not exists (select from holdfast.run r where r.run_id = f.run_id and r.state = 'o');

-- name: unsettled_slots(schedule_id) -> rows
-- nullable: task_id, run_id
-- Return firings that are not over, with whether they were asked to stop, and waiting slots, oldest first. Requires the
-- lock.
select f.slot_at, f.state::text as state, f.task_id, f.run_id, f.is_manual,
  coalesce(t.cancel_at is not null, r.canceled_at is not null, false) as is_canceling
from holdfast.slot f
left join holdfast.live t on t.task_id = f.task_id
left join holdfast.run r on r.run_id = f.run_id
where f.schedule_id = @schedule_id and ((f.state = 'f' and not f.is_over) or f.state = 'w')
order by f.slot_at;

-- name: record_slots(schedule_id, tenant_id, name, slot_ats, first_ats[?], slots, states, task_ids[?], run_ids[?],
--   causes, reasons, is_manual?) -> nothing
-- Record the decisions about slots, with one event of each kind. A slot that is recorded already fails the transaction,
-- and with it the firing: the primary key is the guard, not an earlier read.
with inserted as (
  insert into holdfast.slot (
    schedule_id, slot_at, first_at, tenant_id, slots, state, task_id, run_id, cause, reason, is_manual, actor
  )
  select @schedule_id, g.slot_at, g.first_at, @tenant_id, g.slots, g.state::"char", g.task_id, g.run_id, g.cause, g.reason,
    @is_manual::text is not null, @is_manual::text
  from unnest(
    @slot_ats::timestamptz[], @first_ats::timestamptz[], @slots::int[], @states::text[], @task_ids::bigint[], @run_ids::bigint[], @causes::text[], @reasons::text[]
  ) as g (slot_at, first_at, slots, state, task_id, run_id, cause, reason)
  returning slot_at, slots, state, cause, coalesce(task_id, run_id) as id
)
insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
select @tenant_id, case state when 'f' then 'schedule.fired' when 'w' then 'schedule.waiting' when 'k' then 'schedule.skipped'
    else 'schedule.missed' end,
  coalesce(array_agg(id order by slot_at) filter (where id is not null), '{}'),
  coalesce(array_agg(0) filter (where id is not null), '{}'),
  jsonb_build_object('schedule', @name::text, 'cause', cause, 'slots', sum(slots), 'last', max(slot_at), 'actor', @is_manual::text)
from inserted
group by state, cause;

-- name: release_slot(schedule_id, slot_at, task_id?, run_id?, reason, schedule) -> row?
-- Fire a waiting slot, under the schedule's lock.
with released as (
  update holdfast.slot f
  set state = 'f', task_id = @task_id, run_id = @run_id, cause = 'waited', reason = @reason, decided_at = holdfast.instant()
  where f.schedule_id = @schedule_id and f.slot_at = @slot_at and f.state = 'w'
  returning f.tenant_id, f.slot_at, f.actor, coalesce(f.task_id, f.run_id) as id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'schedule.fired', array[id], array[0],
    jsonb_build_object('schedule', @schedule::text, 'cause', 'waited', 'slots', 1, 'last', slot_at, 'actor', actor)
  from released
)
select id
from released;

-- name: drop_slots(schedule_id, slots, cause, reason, name) -> nothing
-- Skip waiting slots that are not to fire any more, under the schedule's lock.
with dropped as (
  update holdfast.slot f
  set state = 'k', cause = @cause, reason = @reason, decided_at = holdfast.instant()
  where f.schedule_id = @schedule_id and f.slot_at = any(@slots::timestamptz[]) and f.state = 'w'
  returning f.tenant_id, f.slot_at
)
insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
select tenant_id, 'schedule.skipped', '{}', '{}',
  jsonb_build_object('schedule', @name::text, 'cause', @cause::text, 'slots', count(*), 'last', max(slot_at))
from dropped
group by tenant_id;

-- name: advance_schedule(schedule_id, next_at?, upcoming?, look_at?) -> row?
-- Move on to the next undecided slot. The previous next slot is the guard.
update holdfast.schedule s
set next_at = @upcoming, look_at = least(@upcoming, @look_at::timestamptz), counted_at = holdfast.instant(), trouble = null
where s.schedule_id = @schedule_id and s.next_at is not distinct from @next_at
returning s.schedule_id;

-- name: decided_slots(schedule_id, start) -> rows
-- Return recorded slots from an instant on. Other than slots fired by hand there are any only after the clock was set
-- back.
select f.slot_at
from holdfast.slot f
where f.schedule_id = @schedule_id and f.slot_at >= @start;

-- name: void_slots(schedule_id) -> nothing
-- After the clock was set back, make slots undecided again that were due only by the old clock, unless they fired or
-- wait. Requires the schedule's lock.
delete from holdfast.slot f
where f.schedule_id = @schedule_id and f.slot_at > holdfast.instant() and f.state in ('k', 'm');

-- name: record_schedule_error(schedule_id, revision, trouble, delay_seconds) -> nothing
-- Record why a schedule could not fire, and postpone its next try.
update holdfast.schedule s
set trouble = @trouble, look_at = holdfast.instant() + make_interval(secs => @delay_seconds), counted_at = holdfast.instant()
where s.schedule_id = @schedule_id and s.revision = @revision
returning s.schedule_id;

-- name: check_schedule_soon(schedule_id) -> nothing
-- Make the next pass process a schedule that has a waiting slot.
update holdfast.schedule s
set look_at = least(s.look_at, holdfast.instant())
where s.schedule_id = @schedule_id;

-- name: next_schedule_check() -> value?
-- nullable: extract
-- Return the seconds until the next schedule has to be processed.
select extract(epoch from min(look_at) - holdfast.instant())::double precision
from holdfast.schedule;

-- name: pause_schedule(tenant_id, name, actor, reason) -> value?
-- Pause a schedule. A second pause changes nothing and keeps the first reason.
with updated as (
  update holdfast.schedule s
  set paused_at = holdfast.instant(), paused_by = @actor, paused_reason = @reason
  where s.tenant_id = @tenant_id and s.name = @name and s.paused_at is null
  returning s.schedule_id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select @tenant_id, 'schedule.paused', '{}', '{}',
    jsonb_build_object('schedule', @name::text, 'actor', @actor::text, 'reason', @reason::text)
  from updated
)
select count(*) = 1 as is_changed
from updated;

-- name: resume_schedule(tenant_id, name, actor, reason) -> value?
-- Resume a schedule and its waiting slots, under its lock.
with updated as (
  update holdfast.schedule s
  set paused_at = null, paused_by = null, paused_reason = null, look_at = least(s.look_at, holdfast.instant())
  where s.tenant_id = @tenant_id and s.name = @name and s.paused_at is not null
  returning s.schedule_id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select @tenant_id, 'schedule.resumed', '{}', '{}',
    jsonb_build_object('schedule', @name::text, 'actor', @actor::text, 'reason', @reason::text)
  from updated
)
select count(*) = 1 as is_changed
from updated;

-- name: delete_schedule(tenant_id, name, actor, reason) -> value?
-- Delete a schedule and its slots. Its tasks and runs stay.
with deleted as (
  delete from holdfast.schedule s
  where s.tenant_id = @tenant_id and s.name = @name
  returning s.schedule_id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select @tenant_id, 'schedule.deleted', '{}', '{}',
    jsonb_build_object('schedule', @name::text, 'actor', @actor::text, 'reason', @reason::text)
  from deleted
)
select count(*) = 1 as is_changed
from deleted;

-- name: delete_old_slots(days, slots_max, slots_min) -> nothing
-- Delete slots beyond the newest @slots_max of a schedule or beyond the retention; the newest @slots_min and unsettled ones always
-- stay. The schedule stores up to where slots were deleted.
with cut as materialized (
  select s.schedule_id, least(
      coalesce((
        select f.slot_at
        from holdfast.slot f
        where f.schedule_id = s.schedule_id
        order by f.slot_at desc
        offset @slots_min
        limit 1
      ), '-infinity'),
      greatest(holdfast.instant() - make_interval(secs => @days::double precision * 86400), (
        select f.slot_at
        from holdfast.slot f
        where f.schedule_id = s.schedule_id
        order by f.slot_at desc
        offset @slots_max
        limit 1
      ))
    ) as slot_at
  from holdfast.schedule s
),
deleted as (
  delete from holdfast.slot f
  using cut
  where f.schedule_id = cut.schedule_id and f.slot_at <= cut.slot_at and (f.is_over or f.state in ('k', 'm'))
  returning f.schedule_id, f.slot_at
)
update holdfast.schedule s
set forgotten_until = greatest(s.forgotten_until, g.slot_at)
from (select schedule_id, max(slot_at) as slot_at from deleted group by schedule_id) g
where s.schedule_id = g.schedule_id
returning s.schedule_id;

-- name: list_schedules(tenant_id, name?, limit, after?) -> rows
-- nullable: cron, every_seconds, queue, priority, tags, max_active, trouble, paused_at, paused_by, paused_reason,
--   last_slot_at, passed_over
-- Return schedules by name (or one), with their last firing, unsettled slots, and the skipped and missed slots of the
-- last day among the newest hundred.
select s.schedule_id, s.name, s.origin, s.kind::text as kind, s.target, s.cron, s.every_seconds, s.timezone, s.overlap,
  s.missed, s.max_waiting, s.queue, s.priority, s.tags, s.input, s.wants_time, s.max_active, s.next_at, s.trouble,
  s.paused_at, s.paused_by, s.paused_reason, s.created_at, holdfast.instant() as now,
  (
    select max(f.slot_at)
    from holdfast.slot f
    where f.schedule_id = s.schedule_id and f.state = 'f'
  ) as last_slot_at,
  (
    select count(*)::int
    from holdfast.slot f
    where f.schedule_id = s.schedule_id and f.state = 'w'
  ) as waiting,
  (
    select jsonb_object_agg(cause, slots)::text
    from (
      select f.cause, sum(f.slots) as slots
      from (select * from holdfast.slot f where f.schedule_id = s.schedule_id order by f.slot_at desc limit 100) f
      where f.state in ('k', 'm') and f.decided_at > holdfast.instant() - interval '1 day'
      group by f.cause
    ) as by_cause
  ) as passed_over
from holdfast.schedule s
where s.tenant_id = @tenant_id and (@name::text is null or s.name = @name) and s.name > coalesce(@after::text, '')
order by s.name
limit @limit;

-- name: schedule_names(tenant_id, limit) -> rows
-- Return the names of schedules.
select s.name
from holdfast.schedule s
where s.tenant_id = @tenant_id
order by s.name
limit @limit;

-- name: list_slots(schedule_ids, limit, slots[?]) -> rows
-- nullable: first_at, actor, task_id, run_id, outcome
-- Return the newest slots of schedules, or one given slot of each, with the state of their tasks or runs.
select f.schedule_id, f.slot_at, f.first_at, f.slots, f.state::text as state, f.cause, f.reason, f.actor, f.decided_at, f.task_id,
  f.run_id,
  case
    when f.run_id is not null then
      (select case r.state when 'o' then 'running' when 'c' then 'completed' when 'f' then 'failed' else 'canceled' end
        from holdfast.run r where r.run_id = f.run_id)
    when t.state = 'r' then 'running'
    when t.state = 'w' and t.is_retrying then 'retrying'
    when t.task_id is not null then 'queued'
    when e.task_id is not null then case e.state when 'f' then 'failed' else 'canceled' end
    when a.task_id is not null then 'completed'
  end as outcome
from unnest(@schedule_ids::int[], @slots::timestamptz[]) as g (schedule_id, slot_at)
cross join lateral (
  select *
  from holdfast.slot f
  where f.schedule_id = g.schedule_id and (g.slot_at is null or f.slot_at = g.slot_at)
  order by f.slot_at desc
  limit @limit
) f
left join holdfast.live t on t.task_id = f.task_id
left join holdfast.ended e on e.task_id = f.task_id
left join holdfast.attempt a on a.task_id = f.task_id and a.state = 'c'
order by f.schedule_id, f.slot_at desc;
