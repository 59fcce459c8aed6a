-- name: heartbeat
-- Extend leases by attempt token, only before they expire: an expired lease is never revived. A row that does not come
-- back is lost to this worker; `cancel_requested` asks it to stop.
with given as materialized (
  select *
  from unnest($1::bigint[], $2::uuid[]) as g (task_id, lease_token)
),
held as materialized (
  select t.task_id, t.lease_token, t.state, t.lease_expires_at
  from holdfast.live t
  where t.task_id = any($1::bigint[])
  order by t.task_id
  for no key update of t
),
fenced as materialized (
  select held.task_id
  from held
  join given on given.task_id = held.task_id and given.lease_token = held.lease_token
  where held.state = 'r' and held.lease_expires_at > holdfast.instant()
)
update holdfast.live t
set lease_expires_at = greatest(t.lease_expires_at, holdfast.instant() + make_interval(secs => $3))
where t.task_id = any(array(select task_id from fenced)) and t.state = 'r'
returning t.task_id, t.lease_expires_at, t.cancel_at is not null as cancel_requested;

-- name: expired
-- Leases nobody renewed, reservations nobody attached to, cancels past their grace, workers known dead: locked here,
-- decided by the caller, settled in the same transaction. Re-checked on the locked row, so N reapers equal one.
select t.task_id, t.attempt, t.lease_token, t.policy_id, t.retries, t.losses, t.worker_id, t.state::text as state,
  t.lease_expires_at, t.cancel_at is not null as is_canceled,
  coalesce(t.started_at + make_interval(secs => p.timeout_seconds) <= holdfast.instant(), false) as is_past_deadline,
  w.state as worker_state, w.name as worker_name
from holdfast.live t
join holdfast.policy p on p.policy_id = t.policy_id
left join holdfast.worker w on w.worker_id = t.worker_id
where t.state in ('r', 'v')
  and (t.lease_expires_at <= holdfast.instant() or t.cancel_at <= holdfast.instant() or w.state = 'gone')
limit $1
for update of t skip locked;

-- name: reserve
-- Set a queued task aside for one launch of a worker: unique per (task, attempt), with a one-shot token.
update holdfast.live t
set state = 'v', attempt = t.attempt + 1, lease_token = gen_random_uuid(), started_at = holdfast.instant(),
  lease_expires_at = holdfast.instant() + make_interval(secs => $2)
where t.task_id = $1 and t.state = 'q'
returning t.task_id, t.attempt, t.lease_token;

-- name: attach
-- A launched worker swaps its one-shot token for a lease on the reserved attempt.
update holdfast.live t
set state = 'r', worker_id = $4, lease_token = gen_random_uuid(), started_at = holdfast.instant(),
  lease_expires_at = holdfast.instant() + make_interval(secs => $5)
where t.task_id = $1 and t.attempt = $2 and t.lease_token = $3 and t.state = 'v'
  and t.lease_expires_at > holdfast.instant()
  and exists (select from holdfast.worker w where w.worker_id = $4 and w.state = 'active')
returning t.task_id, t.attempt, t.lease_token;

-- name: promote
-- Delayed and retrying tasks whose time has come become claimable.
with due as materialized (
  select task_id
  from holdfast.live
  where state = 'w' and due_at <= holdfast.instant()
  order by due_at
  limit $1
  for update skip locked
),
moved as (
  update holdfast.live t
  set state = 'q', due_at = null, is_retrying = false
  where t.task_id = any(array(select task_id from due)) and t.state = 'w'
  returning t.lane_id
)
select count(*)::int as promoted, array_agg(distinct lane_id) as lanes
from moved;

-- name: next_due
-- Seconds until the next waiting task is due.
select extract(epoch from min(due_at) - holdfast.instant())::double precision
from holdfast.live
where state = 'w';

-- name: unclaimed_lanes
-- Lanes with claimable work: their wake-up may have been lost, so it is published again.
select l.lane_id
from holdfast.lane l
where exists (select from holdfast.live t where t.state = 'q' and t.lane_id = l.lane_id);
