-- name: pause_queue
-- Pause a queue; running tasks continue. A second pause keeps the time of the first and replaces the reason if it gives
-- one.
with updated as (
  update holdfast.queue q
  set paused_at = coalesce(q.paused_at, holdfast.instant()), paused_by = $3, paused_reason = $4
  where q.tenant_id = $1 and q.name = $2 and (q.paused_at is null or $4 not in ('', q.paused_reason))
  returning q.queue_id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select $1, 'queue.paused', '{}', '{}', jsonb_build_object('queue', $2::text, 'actor', $3::text, 'reason', $4::text)
  from updated
)
select count(*) = 1 as is_changed
from updated;

-- name: resume_queue
-- Resume a queue.
with updated as (
  update holdfast.queue q
  set paused_at = null, paused_by = null, paused_reason = null
  where q.tenant_id = $1 and q.name = $2 and q.paused_at is not null
  returning q.queue_id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select $1, 'queue.resumed', '{}', '{}', jsonb_build_object('queue', $2::text, 'actor', $3::text, 'reason', $4::text)
  from updated
)
select count(*) = 1 as is_changed
from updated;

-- name: limit_queue
-- Set how many tasks of a queue run at once and how many start per second; null removes a limit. The bucket of starts
-- begins full.
with updated as (
  update holdfast.queue q
  set max_running = $3, starts_per_second = $4, starts_left = 0, starts_counted_at = null
  where q.tenant_id = $1 and q.name = $2
  returning q.queue_id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select $1, 'queue.limited', '{}', '{}', jsonb_build_object('queue', $2::text, 'max_running', $3::int,
    'starts_per_second', $4::double precision, 'actor', $5::text, 'reason', $6::text)
  from updated
)
select count(*) = 1 as is_changed
from updated;

-- name: lock_queue
-- Return the settings of a queue, under its lock, so that the state before a change is the one that is recorded.
select q.paused_at is not null as paused, q.paused_by, q.paused_reason, q.max_running, q.starts_per_second
from holdfast.queue q
where q.tenant_id = $1 and q.name = $2
for no key update of q;

-- name: queue_names
-- Return the names of the first thousand queues.
select name
from holdfast.queue
where tenant_id = $1
order by name
limit 1000;

-- name: find_queue
-- Return whether there is a queue with that name.
select true
from holdfast.queue
where tenant_id = $1 and name = $2;
