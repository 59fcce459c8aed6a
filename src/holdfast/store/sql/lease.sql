-- name: heartbeat
-- Extend leases by attempt token, only before they expire: an expired lease is never revived. A row that another
-- transaction holds is not waited for, because a worker renews all its leases here: it comes back as busy, as it was
-- committed last, neither renewed nor lost. A row that does not come back is lost to this worker; `cancel_requested` asks
-- it to stop.
with given as materialized (
  select *
  from unnest($1::bigint[], $2::uuid[]) as g (task_id, lease_token)
),
locked as materialized (
  select t.task_id, t.lease_token, t.state, t.lease_expires_at
  from holdfast.live t
  where t.task_id = any($1::bigint[])
  order by t.task_id
  for no key update of t skip locked
),
fenced as materialized (
  select locked.task_id
  from locked
  join given on given.task_id = locked.task_id and given.lease_token = locked.lease_token
  where locked.state = 'r' and locked.lease_expires_at > holdfast.instant()
),
renewed as (
  update holdfast.live t
  set lease_expires_at = greatest(t.lease_expires_at, holdfast.instant() + make_interval(secs => $3))
  where t.task_id = any(array(select task_id from fenced))
  returning t.task_id, t.lease_expires_at, t.cancel_at is not null as cancel_requested
)
select task_id, lease_expires_at, cancel_requested, false as is_busy
from renewed
union all
select busy.task_id, busy.lease_expires_at, busy.cancel_at is not null, true
from holdfast.live busy
join given on given.task_id = busy.task_id and given.lease_token = busy.lease_token
where busy.task_id = any(array(select g.task_id from given g where g.task_id not in (select locked.task_id from locked)))
  and busy.state = 'r' and busy.lease_expires_at > holdfast.instant();

-- name: renew_ended
-- Extend leases of attempts that ended and wait to be settled: by attempt token, only before they expire. Rows that are
-- locked are passed over, because whoever settles one holds it for as long as that takes, and no beat waits for it. So
-- one that does not come back may be lost, settled, or about to be: its report hears which.
with given as materialized (
  select *
  from unnest($1::bigint[], $2::uuid[]) as g (task_id, lease_token)
),
locked as materialized (
  select t.task_id, t.lease_token, t.state, t.lease_expires_at
  from holdfast.live t
  where t.task_id = any($1::bigint[])
  order by t.task_id
  for no key update of t skip locked
),
fenced as materialized (
  select locked.task_id
  from locked
  join given on given.task_id = locked.task_id and given.lease_token = locked.lease_token
  where locked.state = 'r' and locked.lease_expires_at > holdfast.instant()
)
update holdfast.live t
set lease_expires_at = greatest(t.lease_expires_at, holdfast.instant() + make_interval(secs => $3))
where t.task_id = any(array(select task_id from fenced))
returning t.task_id;

-- name: expired
-- Leases nobody renewed, reservations nobody attached to, cancels past their grace, workers known dead, attempts $3
-- seconds past their time limit, whose worker ought to have ended them: locked here, decided by the caller, settled in
-- the same transaction. Re-checked on the locked row, so N reapers equal one. The order is the index's: without it a
-- planner that once saw only running rows would read the whole table each time. $2 are tasks to leave out: those that
-- could not be settled a moment ago would fill every batch. $4: nodes of runs alone, or only tasks outside of runs, which
-- wait for no run. Where the clock is not to be believed ($5 false) only what a dead worker held is ended.
with locked as materialized (
  select t.*
  from holdfast.live t
  where t.state in ('r', 'v')
    and (t.run_id is not null) = $4
    and (
      ($5 and t.lease_expires_at <= holdfast.instant())
      or ($5 and t.cancel_at <= holdfast.instant())
      or t.worker_id in (select w.worker_id from holdfast.worker w where w.state = 'gone')
      or ($5 and t.state = 'r' and t.started_at + make_interval(
        secs => $3 + (select p.timeout_seconds from holdfast.policy p where p.policy_id = t.policy_id)
      ) <= holdfast.instant())
    )
    and t.task_id <> all($2::bigint[])
  order by t.state, t.due_at
  limit $1
  for update of t skip locked
)
select t.task_id, t.attempt, t.lease_token, t.policy_id, t.retries, t.losses, t.worker_id, t.state::text as state,
  t.run_id, t.lease_expires_at, t.cancel_at is not null as is_canceled,
  coalesce(t.started_at + make_interval(secs => p.timeout_seconds) <= holdfast.instant(), false) as is_past_deadline,
  t.lease_expires_at > holdfast.instant() as is_leased, w.state as worker_state, w.name as worker_name,
  w.drained_at is not null as was_asked_to_stop, t.lane_id,
  exists (
    select from holdfast.lane l
    join holdfast.breaker b on b.tenant_id = l.tenant_id and b.action = l.action
    where l.lane_id = t.lane_id
  ) as is_guarded
from locked t
join holdfast.policy p on p.policy_id = t.policy_id
left join holdfast.worker w on w.worker_id = t.worker_id;

-- name: read_clock
-- What time it is, in seconds.
select extract(epoch from holdfast.instant())::double precision;

-- name: reserve
-- Set a queued task aside for one launch of a worker: unique per (task, attempt), with a one-shot token of which only the
-- hash is kept. $3 is the half-open breaker that granted a trial, 0 if none did; $4 the attempt this launch is for, null
-- for whichever comes next; $8 the holder of a slot, which the reservation makes its own, null where there are no slots.
-- `is_first`: no retry, and not launched before in vain.
with taken as (
  update holdfast.live t
  set state = 'v', attempt = t.attempt + 1, lease_token = gen_random_uuid(), started_at = holdfast.instant(),
    lease_expires_at = holdfast.instant() + make_interval(secs => $2)
  where t.task_id = $1 and t.state = 'q' and ($4::int is null or t.attempt + 1 = $4)
    and not exists (
      select from holdfast.lane l
      join holdfast.queue q on q.queue_id = l.queue_id
      where l.lane_id = t.lane_id and q.paused_at is not null
    )
    and not exists (
      select from holdfast.lane l
      join holdfast.breaker b on b.tenant_id = l.tenant_id and b.action = l.action
      where l.lane_id = t.lane_id and b.state <> 'c' and (b.state = 'o' or b.breaker_id <> $3)
    )
    and ($8::uuid is null or exists (
      select from holdfast.launch_slot s where s.holder = $8 and s.expires_at > holdfast.instant()
    ))
  returning t.task_id, t.attempt, t.lease_token, t.tenant_id, t.lease_expires_at, t.lane_id, t.retries, t.losses
),
bound as (
  update holdfast.launch_slot s
  set expires_at = taken.lease_expires_at
  from taken
  where s.holder = $8
),
noted as (
  insert into holdfast.launch as h (
    task_id, attempt, tenant_id, launcher, holder, token_hashes, token_expires_at, launching_until
  )
  select task_id, attempt, tenant_id, $5, $8, array[$6::bytea], holdfast.instant() + make_interval(secs => $7),
    holdfast.instant() + make_interval(secs => $9)
  from taken
  on conflict (task_id, attempt) do update
  set state = 'p', launcher = excluded.launcher, holder = excluded.holder,
    token_hashes = h.token_hashes || excluded.token_hashes, token_expires_at = excluded.token_expires_at,
    launching_until = excluded.launching_until
  returning h.task_id, h.failures
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select tenant_id, 'task.reserved', array[task_id], array[attempt]
  from taken
)
select taken.task_id, taken.attempt, taken.lease_token, taken.lane_id,
  taken.retries + taken.losses + noted.failures = 0 as is_first
from taken
join noted on noted.task_id = taken.task_id;

-- name: attach
-- A launched worker swaps its one-shot token for a lease on the reserved attempt, once and in time. $3 is the token's
-- hash. Every token of the attempt goes with it.
with taken as (
  update holdfast.live t
  set state = 'r', worker_id = $4, lease_token = gen_random_uuid(), started_at = holdfast.instant(),
    lease_expires_at = holdfast.instant() + make_interval(secs => $5)
  where t.task_id = $1 and t.attempt = $2 and t.state = 'v'
    and t.lease_expires_at > holdfast.instant()
    and exists (
      select from holdfast.launch h
      where h.task_id = t.task_id and h.attempt = t.attempt and $3::bytea = any(h.token_hashes)
        and h.token_expires_at > holdfast.instant()
    )
    and exists (
      select from holdfast.worker w where w.worker_id = $4 and w.state = 'active' and w.tenant_id = t.tenant_id
    )
  returning t.task_id, t.attempt, t.lease_token, t.lane_id, t.policy_id, t.retries, t.losses, t.tenant_id,
    t.run_id, t.node_no
),
spent as (
  update holdfast.launch h
  set state = 'a', token_hashes = '{}', attached_at = holdfast.instant()
  from taken
  where h.task_id = taken.task_id and h.attempt = taken.attempt
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select tenant_id, 'task.started', array[task_id], array[attempt]
  from taken
)
select taken.*, b.input, b.tags
from taken
left join holdfast.body b on b.task_id = taken.task_id;

-- name: promote
-- Delayed and retrying tasks whose time has come become claimable; retries under a quota are answered, locked, for the
-- quota to decide.
with due as materialized (
  select task_id, lane_id, is_retrying, due_at
  from holdfast.live
  where state = 'w' and due_at <= holdfast.instant()
  order by due_at
  limit $1
  for update skip locked
),
metered as materialized (
  select l.lane_id
  from holdfast.lane l
  where l.lane_id = any(array(select distinct lane_id from due where is_retrying))
    and exists (select from holdfast.quota k where holdfast.quota_covers(k, l))
),
moved as (
  update holdfast.live t
  set state = 'q', due_at = null, is_retrying = false
  where t.task_id = any(array(
    select task_id from due where not (is_retrying and lane_id in (select lane_id from metered))
  ))
  returning t.lane_id
),
asked as (
  select due.task_id, due.lane_id, due.due_at
  from due
  where due.is_retrying and due.lane_id in (select lane_id from metered)
)
select
  (select count(*)::int from moved) as promoted,
  (select array_agg(distinct lane_id) from moved) as lanes,
  (select array_agg(task_id order by due_at, task_id) from asked) as asked_tasks,
  (select array_agg(lane_id order by due_at, task_id) from asked) as asked_lanes;

-- name: next_due
-- Seconds until the next waiting task is due.
select extract(epoch from min(due_at) - holdfast.instant())::double precision
from holdfast.live
where state = 'w';

-- name: unclaimed_lanes
-- Lanes with claimable work: their wake-up may have been lost, so it is published again.
select l.lane_id
from holdfast.lane l
cross join lateral (
  select t.task_id
  from holdfast.live t
  where t.state = 'q' and t.lane_id = l.lane_id
  order by t.priority, t.task_id
  limit 1
) t;

-- name: heartbeat_task
-- Extend one lease by attempt and token, only before it expires; the answer names the worker, who is thereby alive. A
-- row that another transaction holds comes back as busy, not extended.
with locked as materialized (
  select t.task_id
  from holdfast.live t
  where t.task_id = $1 and t.attempt = $2 and t.lease_token = $3 and t.state = 'r'
    and t.lease_expires_at > holdfast.instant()
  for no key update of t skip locked
),
renewed as (
  update holdfast.live t
  set lease_expires_at = greatest(t.lease_expires_at, holdfast.instant() + make_interval(secs => $4))
  where t.task_id = any(array(select task_id from locked))
  returning t.lease_expires_at, t.cancel_at is not null as cancel_requested, t.worker_id
)
select lease_expires_at, cancel_requested, worker_id, false as is_busy
from renewed
union all
select busy.lease_expires_at, busy.cancel_at is not null, busy.worker_id, true
from holdfast.live busy
where busy.task_id = $1 and busy.attempt = $2 and busy.lease_token = $3 and busy.state = 'r'
  and busy.lease_expires_at > holdfast.instant() and not exists (select from locked);

-- name: renew_held
-- Extend the leases of tasks that a worker says it holds and does hold. A row that another transaction holds comes back
-- as busy, not extended. What does not come back is lost to the worker.
with locked as materialized (
  select t.task_id, t.worker_id, t.state, t.lease_expires_at
  from holdfast.live t
  where t.task_id = any($2::bigint[])
  order by t.task_id
  for no key update of t skip locked
),
renewed as (
  update holdfast.live t
  set lease_expires_at = greatest(t.lease_expires_at, holdfast.instant() + make_interval(secs => $3))
  where t.task_id = any(array(
    select task_id
    from locked
    where locked.worker_id = $1 and locked.state = 'r' and locked.lease_expires_at > holdfast.instant()
  ))
  returning t.task_id, t.cancel_at is not null as cancel_requested
)
select task_id, cancel_requested, false as is_busy
from renewed
union all
select busy.task_id, busy.cancel_at is not null, true
from holdfast.live busy
where busy.task_id = any(array(
    select g.task_id from unnest($2::bigint[]) as g (task_id) where g.task_id not in (select locked.task_id from locked)
  ))
  and busy.worker_id = $1 and busy.state = 'r' and busy.lease_expires_at > holdfast.instant();

-- name: held_unnamed
-- What a worker holds and did not name: the answer to a claim got lost. The lease begins anew; one that expired is not
-- revived.
with mine as materialized (
  select t.task_id
  from holdfast.live t
  where t.state = 'r' and t.due_at is null and t.tenant_id = (select w.tenant_id from holdfast.worker w where w.worker_id = $1)
    and t.worker_id = $1 and t.lease_expires_at > holdfast.instant() and t.task_id <> all($2::bigint[])
  order by t.due_at
  limit $4
  for no key update of t
),
found as (
  update holdfast.live t
  set lease_expires_at = greatest(t.lease_expires_at, holdfast.instant() + make_interval(secs => $3))
  where t.task_id = any(array(select task_id from mine))
  returning t.task_id, t.attempt, t.lease_token, t.lane_id, t.policy_id, t.retries, t.losses, t.tenant_id,
    t.run_id, t.node_no
)
select found.*, b.input, b.tags
from found
left join lateral (
  select b.input, b.tags
  from holdfast.body b
  where b.task_id = found.task_id
  limit 1
) b on true;

-- name: open_attempts
-- What a report needs to be judged by, of attempts that are open: their policy, what of the budget is spent, and whether
-- a breaker counts them.
select t.task_id, t.attempt, t.policy_id, t.retries, t.losses, t.lane_id,
  exists (
    select from holdfast.lane l
    join holdfast.breaker b on b.tenant_id = l.tenant_id and b.action = l.action
    where l.lane_id = t.lane_id
  ) as is_guarded
from holdfast.live t
where t.task_id = any($1::bigint[]) and t.lease_token is not null;

-- name: lease_holder
-- Whose task a lease holds, which its worker may not say by itself: the tenant, the lane, what of the budget is spent,
-- and its place in a run.
select t.tenant_id, t.lane_id, t.policy_id, t.retries, t.losses, t.run_id, t.node_no
from holdfast.live t
where t.task_id = $1 and t.attempt = $2 and t.lease_token = $3 and t.state = 'r';

-- name: lease_ends
-- When the leases of these tasks expire.
select t.task_id, t.lease_expires_at
from holdfast.live t
where t.task_id = any($1::bigint[]) and t.lease_token is not null;
