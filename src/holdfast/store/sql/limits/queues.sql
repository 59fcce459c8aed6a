-- name: pause_queue(tenant_id, name, actor, reason) -> value?
-- Pause a queue; running tasks continue. A second pause keeps the time of the first and replaces the reason if it gives
-- one.
with updated as (
  update holdfast.queue q
  set paused_at = coalesce(q.paused_at, holdfast.instant()), paused_by = @actor, paused_reason = @reason
  where q.tenant_id = @tenant_id and q.name = @name and (q.paused_at is null or @reason not in ('', q.paused_reason))
  returning q.queue_id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select @tenant_id, 'queue.paused', '{}', '{}', jsonb_build_object('queue', @name::text, 'actor', @actor::text, 'reason', @reason::text)
  from updated
)
select count(*) = 1 as is_changed
from updated;

-- name: resume_queue(tenant_id, name, actor, reason) -> value?
-- Resume a queue.
with updated as (
  update holdfast.queue q
  set paused_at = null, paused_by = null, paused_reason = null
  where q.tenant_id = @tenant_id and q.name = @name and q.paused_at is not null
  returning q.queue_id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select @tenant_id, 'queue.resumed', '{}', '{}', jsonb_build_object('queue', @name::text, 'actor', @actor::text, 'reason', @reason::text)
  from updated
)
select count(*) = 1 as is_changed
from updated;

-- name: limit_queue(tenant_id, name, max_running?, starts_per_second?, actor, reason) -> nothing
-- Set how many tasks of a queue run at once and how many start per second; null removes a limit. The bucket of starts
-- begins full.
with updated as (
  update holdfast.queue q
  set max_running = @max_running, starts_per_second = @starts_per_second, starts_left = 0, starts_counted_at = null
  where q.tenant_id = @tenant_id and q.name = @name
  returning q.queue_id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select @tenant_id, 'queue.limited', '{}', '{}', jsonb_build_object('queue', @name::text, 'max_running', @max_running::int,
    'starts_per_second', @starts_per_second::double precision, 'actor', @actor::text, 'reason', @reason::text)
  from updated
)
select count(*) = 1 as is_changed
from updated;

-- name: lock_queue(tenant_id, name) -> row?
-- nullable: paused_by, paused_reason, max_running, starts_per_second
-- Return the settings of a queue, under its lock, so that the state before a change is the one that is recorded.
select q.paused_at is not null as paused, q.paused_by, q.paused_reason, q.max_running, q.starts_per_second
from holdfast.queue q
where q.tenant_id = @tenant_id and q.name = @name
for no key update of q;

-- name: queue_names(tenant_id) -> rows
-- Return the names of the first thousand queues.
select name
from holdfast.queue
where tenant_id = @tenant_id
order by name
limit 1000;

-- name: find_queue(tenant_id, name) -> value?
-- Return whether there is a queue with that name.
select true
from holdfast.queue
where tenant_id = @tenant_id and name = @name;
