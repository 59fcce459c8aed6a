-- name: heartbeat(task_ids, lease_tokens, lease_seconds) -> rows
-- Extend leases by token, only before they expire: an expired lease is never revived. The statement does not wait for
-- locked rows, because a worker renews all its leases here: a locked row is returned as busy, in its last committed
-- state, neither renewed nor lost. A row that is not returned is lost to this worker; `cancel_requested` asks it to
-- stop.
with given as materialized (
  select *
  from unnest(@task_ids::bigint[], @lease_tokens::uuid[]) as g (task_id, lease_token)
),
locked as materialized (
  select t.task_id, t.lease_token, t.state, t.lease_expires_at
  from holdfast.live t
  where t.task_id = any(@task_ids::bigint[])
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
  set lease_expires_at = greatest(t.lease_expires_at, holdfast.instant() + make_interval(secs => @lease_seconds))
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

-- name: renew_ended(task_ids, lease_tokens, lease_seconds) -> rows
-- Extend the leases of ended attempts that wait to be settled: by token, only before they expire. Locked rows are
-- skipped, because the settling transaction keeps them locked and no heartbeat waits for it. A row that is not returned
-- may be lost, settled, or about to be; the response to its report shows which.
with given as materialized (
  select *
  from unnest(@task_ids::bigint[], @lease_tokens::uuid[]) as g (task_id, lease_token)
),
locked as materialized (
  select t.task_id, t.lease_token, t.state, t.lease_expires_at
  from holdfast.live t
  where t.task_id = any(@task_ids::bigint[])
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
set lease_expires_at = greatest(t.lease_expires_at, holdfast.instant() + make_interval(secs => @lease_seconds))
where t.task_id = any(array(select task_id from fenced))
returning t.task_id;

-- name: expired(limit, task_ids, grace_seconds, is_node, is_clock_trusted) -> rows
-- nullable: worker_id, run_id, worker_state, worker_name
-- Lock expired leases, reservations without a worker, cancellations past their grace period, attempts of workers known
-- to be dead, and attempts @grace_seconds seconds past their time limit. The caller decides and settles them in the same
-- transaction. Conditions are evaluated on the locked row, so N reapers act like one. The order matches the index:
-- without it, a planner with statistics of running rows only would read the whole table. @task_ids are tasks to skip: those
-- that could not be settled a moment ago would fill every batch. @is_node selects nodes of runs, or tasks outside of runs,
-- which wait for no run. If the clock is not reliable (@is_clock_trusted false), only attempts of dead workers are ended.
with locked as materialized (
  select t.*
  from holdfast.live t
  where t.state in ('r', 'v')
    and (t.run_id is not null) = @is_node
    and (
      (@is_clock_trusted and t.lease_expires_at <= holdfast.instant())
      or (@is_clock_trusted and t.cancel_at <= holdfast.instant())
      or t.worker_id in (select w.worker_id from holdfast.worker w where w.state = 'gone')
      or (@is_clock_trusted and t.state = 'r' and t.started_at + make_interval(
        secs => @grace_seconds + (select p.timeout_seconds from holdfast.policy p where p.policy_id = t.policy_id)
      ) <= holdfast.instant())
    )
    and t.task_id <> all(@task_ids::bigint[])
  order by t.state, t.due_at
  limit @limit
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

-- name: read_clock() -> value
-- Return the current time in seconds.
select extract(epoch from holdfast.instant())::double precision;

-- name: reserve(task_id, launch_seconds, granted_breaker_id, attempt?, launcher, token_hash, token_seconds, holder?,
--   launching_seconds) -> row?
-- Reserve a queued task for one launch of a worker: unique per (task, attempt), with a one-time token of which only the
-- hash is stored. @granted_breaker_id is the half-open breaker that granted a trial, 0 if none did; @attempt the attempt that the launch is
-- for, null for the next one; @holder the holder of a slot, which the reservation binds to itself, null without slots.
-- `is_first`: no retry, and no failed launch before.
with taken as (
  update holdfast.live t
  set state = 'v', attempt = t.attempt + 1, lease_token = gen_random_uuid(), started_at = holdfast.instant(),
    lease_expires_at = holdfast.instant() + make_interval(secs => @launch_seconds)
  where t.task_id = @task_id and t.state = 'q' and (@attempt::int is null or t.attempt + 1 = @attempt)
    and not exists (
      select from holdfast.lane l
      join holdfast.queue q on q.queue_id = l.queue_id
      where l.lane_id = t.lane_id and q.paused_at is not null
    )
    and not exists (
      select from holdfast.lane l
      join holdfast.breaker b on b.tenant_id = l.tenant_id and b.action = l.action
      where l.lane_id = t.lane_id and b.state <> 'c' and (b.state = 'o' or b.breaker_id <> @granted_breaker_id)
    )
    and (@holder::uuid is null or exists (
      select from holdfast.launch_slot s where s.holder = @holder and s.expires_at > holdfast.instant()
    ))
  returning t.task_id, t.attempt, t.lease_token, t.tenant_id, t.lease_expires_at, t.lane_id, t.retries, t.losses
),
bound as (
  update holdfast.launch_slot s
  set expires_at = taken.lease_expires_at
  from taken
  where s.holder = @holder
),
noted as (
  insert into holdfast.launch as h (
    task_id, attempt, tenant_id, launcher, holder, token_hashes, token_expires_at, launching_until
  )
  select task_id, attempt, tenant_id, @launcher, @holder, array[@token_hash::bytea], holdfast.instant() + make_interval(secs => @token_seconds),
    holdfast.instant() + make_interval(secs => @launching_seconds)
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

-- name: attach(task_id, attempt, token_hash, worker_id, lease_seconds) -> row?
-- nullable: run_id, node_no, input, tags
-- Exchange the one-time token of a launched worker for a lease on the reserved attempt, once and in time. @token_hash is the
-- token's hash. All tokens of the attempt are deleted.
with taken as (
  update holdfast.live t
  set state = 'r', worker_id = @worker_id, lease_token = gen_random_uuid(), started_at = holdfast.instant(),
    lease_expires_at = holdfast.instant() + make_interval(secs => @lease_seconds)
  where t.task_id = @task_id and t.attempt = @attempt and t.state = 'v'
    and t.lease_expires_at > holdfast.instant()
    and exists (
      select from holdfast.launch h
      where h.task_id = t.task_id and h.attempt = t.attempt and @token_hash::bytea = any(h.token_hashes)
        and h.token_expires_at > holdfast.instant()
    )
    and exists (
      select from holdfast.worker w where w.worker_id = @worker_id and w.state = 'active' and w.tenant_id = t.tenant_id
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

-- name: promote(limit) -> row
-- nullable: lanes, asked_tasks
-- null with asked_tasks: asked_lanes
-- Make delayed and retrying tasks claimable when they are due. Retries under a quota are returned locked, for the quota
-- to decide.
with due as materialized (
  select task_id, lane_id, is_retrying, due_at
  from holdfast.live
  where state = 'w' and due_at <= holdfast.instant()
  order by due_at
  limit @limit
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

-- name: next_due() -> value?
-- nullable: extract
-- Return the seconds until the next waiting task is due.
select extract(epoch from min(due_at) - holdfast.instant())::double precision
from holdfast.live
where state = 'w';

-- name: unclaimed_lanes() -> rows
-- Return lanes with claimable tasks: their notification may have been lost, so it is sent again.
select l.lane_id
from holdfast.lane l
cross join lateral (
  select t.task_id
  from holdfast.live t
  where t.state = 'q' and t.lane_id = l.lane_id
  order by t.priority, t.task_id
  limit 1
) t;

-- name: heartbeat_task(task_id, attempt, lease_token, lease_seconds) -> row?
-- Extend one lease by attempt and token, only before it expires. The result names the worker, which is thereby alive. A
-- row that another transaction has locked is returned as busy, not extended.
with locked as materialized (
  select t.task_id
  from holdfast.live t
  where t.task_id = @task_id and t.attempt = @attempt and t.lease_token = @lease_token and t.state = 'r'
    and t.lease_expires_at > holdfast.instant()
  for no key update of t skip locked
),
renewed as (
  update holdfast.live t
  set lease_expires_at = greatest(t.lease_expires_at, holdfast.instant() + make_interval(secs => @lease_seconds))
  where t.task_id = any(array(select task_id from locked))
  returning t.lease_expires_at, t.cancel_at is not null as cancel_requested, t.worker_id
)
select lease_expires_at, cancel_requested, worker_id, false as is_busy
from renewed
union all
select busy.lease_expires_at, busy.cancel_at is not null, busy.worker_id, true
from holdfast.live busy
where busy.task_id = @task_id and busy.attempt = @attempt and busy.lease_token = @lease_token and busy.state = 'r'
  and busy.lease_expires_at > holdfast.instant() and not exists (select from locked);

-- name: renew_held(worker_id, task_ids, lease_seconds) -> rows
-- Extend the leases of tasks that a worker reports and owns. A row that another transaction has locked is returned as
-- busy, not extended. A row that is not returned is lost to the worker.
with locked as materialized (
  select t.task_id, t.worker_id, t.state, t.lease_expires_at
  from holdfast.live t
  where t.task_id = any(@task_ids::bigint[])
  order by t.task_id
  for no key update of t skip locked
),
renewed as (
  update holdfast.live t
  set lease_expires_at = greatest(t.lease_expires_at, holdfast.instant() + make_interval(secs => @lease_seconds))
  where t.task_id = any(array(
    select task_id
    from locked
    where locked.worker_id = @worker_id and locked.state = 'r' and locked.lease_expires_at > holdfast.instant()
  ))
  returning t.task_id, t.cancel_at is not null as cancel_requested
)
select task_id, cancel_requested, false as is_busy
from renewed
union all
select busy.task_id, busy.cancel_at is not null, true
from holdfast.live busy
where busy.task_id = any(array(
    select g.task_id from unnest(@task_ids::bigint[]) as g (task_id) where g.task_id not in (select locked.task_id from locked)
  ))
  and busy.worker_id = @worker_id and busy.state = 'r' and busy.lease_expires_at > holdfast.instant();

-- name: held_unnamed(worker_id, named_task_ids, lease_seconds, limit) -> rows
-- nullable: run_id, node_no, input, tags
-- Return leases that a worker owns and did not name, because the response to a claim was lost. The lease is renewed; an
-- expired one is not revived.
with mine as materialized (
  select t.task_id
  from holdfast.live t
  where t.state = 'r' and t.due_at is null and t.tenant_id = (select w.tenant_id from holdfast.worker w where w.worker_id = @worker_id)
    and t.worker_id = @worker_id and t.lease_expires_at > holdfast.instant() and t.task_id <> all(@named_task_ids::bigint[])
  order by t.due_at
  limit @limit
  for no key update of t
),
found as (
  update holdfast.live t
  set lease_expires_at = greatest(t.lease_expires_at, holdfast.instant() + make_interval(secs => @lease_seconds))
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

-- name: open_attempts(task_ids) -> rows
-- Return what the decision about a report needs, for open attempts: their policy, the used budget, and whether a
-- breaker counts them.
select t.task_id, t.attempt, t.policy_id, t.retries, t.losses, t.lane_id,
  exists (
    select from holdfast.lane l
    join holdfast.breaker b on b.tenant_id = l.tenant_id and b.action = l.action
    where l.lane_id = t.lane_id
  ) as is_guarded
from holdfast.live t
where t.task_id = any(@task_ids::bigint[]) and t.lease_token is not null;

-- name: lease_holder(task_id, attempt, lease_token) -> row?
-- nullable: run_id, node_no
-- Return the task data of a lease that its worker may not claim by itself: tenant, lane, used budget, and position in a
-- run.
select t.tenant_id, t.lane_id, t.policy_id, t.retries, t.losses, t.run_id, t.node_no
from holdfast.live t
where t.task_id = @task_id and t.attempt = @attempt and t.lease_token = @lease_token and t.state = 'r';

-- name: lease_ends(task_ids) -> rows
-- Return when the leases of these tasks expire.
select t.task_id, t.lease_expires_at
from holdfast.live t
where t.task_id = any(@task_ids::bigint[]) and t.lease_token is not null;
