-- name: write_hints(wanted, hints_max?) -> nothing
-- Start or stop writing hints with the changes that make tasks claimable. @hints_max is how many may be outstanding per queue;
-- null keeps the current value.
select holdfast.write_hints(@wanted, @hints_max);

-- name: read_wake() -> row
-- nullable: away_seconds, late_seconds
-- Return whether hints are written, the limit per queue, and the state of the carrier that relays last recorded.
select w.is_on, w.hints_max, w.carrier, w.away_detail,
  extract(epoch from holdfast.instant() - w.away_since)::double precision as away_seconds,
  (select count(*)::int from holdfast.hint) as outstanding,
  (
    select extract(epoch from holdfast.instant() - min(h.send_at))::double precision
    from holdfast.hint h
  ) as late_seconds
from holdfast.wake w;

-- name: take_hints(limit, resend_seconds, resend_seconds_max) -> rows
-- Take the hints that are due, for this relay to send now. Each is postponed first, twice as long each time, so that
-- one whose sending fails or is lost is sent again while its task still waits. Hints of tasks that no longer wait are
-- deleted. The statement does not prove that a task still waits when its hint arrives.
with due as materialized (
  select h.task_id
  from holdfast.hint h
  where h.send_at <= holdfast.instant()
  order by h.send_at
  limit @limit
  for update skip locked
),
waiting as materialized (
  select t.task_id, t.attempt + 1 as attempt, t.lane_id
  from due
  -- Find tasks one by one by id: the index of queued tasks begins with the lane, and would be scanned as a whole.
  cross join lateral (select * from holdfast.live t where t.task_id = due.task_id limit 1) t
  where t.state = 'q'
),
deleted as (
  delete from holdfast.hint h
  where h.task_id = any(array(select task_id from due)) and h.task_id not in (select task_id from waiting)
),
put_off as (
  update holdfast.hint h
  set sends = h.sends + 1,
    send_at = holdfast.instant() + make_interval(secs => least(@resend_seconds * power(2, least(h.sends, 20)), @resend_seconds_max))
  where h.task_id = any(array(select task_id from waiting))
  returning h.task_id, h.sends
)
select w.task_id, w.attempt, l.action, q.name as queue, p.sends
from waiting w
join put_off p on p.task_id = w.task_id
join holdfast.lane l on l.lane_id = w.lane_id
join holdfast.queue q on q.queue_id = l.queue_id;

-- name: return_hints(task_ids, seconds) -> nothing
-- Make hints that were not sent after all due in @seconds seconds.
update holdfast.hint h
set send_at = holdfast.instant() + make_interval(secs => @seconds), sends = greatest(0, h.sends - 1)
where h.task_id = any(@task_ids::bigint[]);

-- name: remind_hints(task_ids) -> rows
-- Make hints due at once, whatever became of their last sending. Returns the tasks that have an outstanding hint.
update holdfast.hint h
set send_at = least(h.send_at, holdfast.instant())
where h.task_id = any(@task_ids::bigint[])
returning h.task_id;

-- name: clear_hints(limit) -> nothing
-- Delete hints of tasks that no longer wait, so that others get their room.
delete from holdfast.hint h
where h.task_id = any(array(
  select n.task_id
  from holdfast.hint n
  where not exists (select from holdfast.live t where t.task_id = n.task_id and t.state = 'q')
  limit @limit
  for update skip locked
))
returning h.task_id;

-- name: fill_hints() -> rows
-- Insert hints for waiting tasks without one, the most urgent first, while their queue has room: there was no room when
-- they became claimable, or their hint was lost.
insert into holdfast.hint (task_id, tenant_id, queue_id)
select t.task_id, t.tenant_id, r.queue_id
from (
  select q.queue_id, greatest(0, holdfast.remaining_hints(q.queue_id)) as room
  from holdfast.queue q
  where q.paused_at is null and exists (select from holdfast.wake w where w.is_on)
) r
cross join lateral (
  select t.task_id, t.tenant_id
  from holdfast.lane l
  cross join lateral (
    select t.task_id, t.tenant_id, t.priority
    from holdfast.live t
    where t.state = 'q' and t.lane_id = l.lane_id
      and not exists (select from holdfast.hint h where h.task_id = t.task_id)
    order by t.priority, t.task_id
    limit r.room
  ) t
  where l.queue_id = r.queue_id
  order by t.priority, t.task_id
  limit r.room
) t
on conflict (task_id) do nothing
returning task_id;

-- name: find_hinted(task_ids) -> rows
-- nullable: tenant_id, state, lane_id, worker_id, sends, action, queue
-- Return the state of the tasks that hints name, and how often their hints were sent. Unknown ids return empty columns.
select g.task_id, t.tenant_id, t.state::text as state, coalesce(t.attempt, 0) as attempt, t.lane_id, t.worker_id, h.sends,
  coalesce(t.lease_expires_at > holdfast.instant(), false) as has_valid_lease,
  coalesce(1 + t.max_retries + t.max_losses, 0) as attempts_max, l.action, q.name as queue,
  t.task_id is null and coalesce(
    (select true from holdfast.body b where b.task_id = g.task_id limit 1),
    (select true from holdfast.attempt a where a.task_id = g.task_id order by a.attempt limit 1),
    (select true from holdfast.ended e where e.task_id = g.task_id limit 1),
    false
  ) as is_over
from unnest(@task_ids::bigint[]) as g (task_id)
left join lateral (
  select *
  from holdfast.live t
  where t.task_id = g.task_id
  limit 1
) t on true
left join holdfast.lane l on l.lane_id = t.lane_id
left join holdfast.queue q on q.queue_id = l.queue_id
left join lateral (
  select h.sends
  from holdfast.hint h
  where h.task_id = g.task_id
  limit 1
) h on true;

-- name: record_carrier_outage(carrier, detail) -> nothing
-- Record that a relay could not send, since when and why, for `why` and `doctor`.
update holdfast.wake w
set carrier = @carrier, away_since = coalesce(w.away_since, holdfast.instant()), away_detail = @detail
where w.is_on;

-- name: record_carrier_recovery(carrier) -> nothing
-- Record that a relay could send again.
update holdfast.wake w
set carrier = @carrier, away_since = null, away_detail = ''
where w.is_on and (w.away_since is not null or w.carrier <> @carrier);
