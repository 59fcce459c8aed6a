-- name: an_attempt_ends_once() -> rows
-- No attempt both failed and ended without a failure.
select f.task_id
from holdfast.failure f
join holdfast.attempt a on a.task_id = f.task_id and a.attempt = f.attempt;

-- name: attempts_are_numbered_without_gaps() -> rows
-- The attempts of a task are numbered 1, 2, 3 …: none is missing and none is extra.
with expected as (
  select task_id, max(attempts) as attempts
  from (
    select t.task_id, t.attempt - (t.state in ('r', 'v'))::int as attempts
    from holdfast.live t
    union all
    select e.task_id, e.attempt
    from holdfast.ended e
    union all
    select a.task_id, a.attempt
    from holdfast.attempt a
    where a.state = 'c'
  ) as told
  group by task_id
),
recorded as (
  select h.task_id, count(*) as attempts, max(h.attempt) as last
  from (
    select task_id, attempt
    from holdfast.attempt
    union all
    select task_id, attempt
    from holdfast.failure
  ) h
  group by h.task_id
)
select expected.task_id, expected.attempts as expected, recorded.attempts as recorded, recorded.last
from expected
left join recorded on recorded.task_id = expected.task_id
where coalesce(recorded.attempts, 0) <> expected.attempts or coalesce(recorded.last, 0) <> expected.attempts;

-- name: attempts_follow_one_another() -> rows
-- Warning: an attempt began a second or more before the previous one ended. Did the database's clock step back?
select h.task_id, h.attempt
from (
  select a.task_id, a.attempt, a.started_at, lag(a.ended_at) over (partition by a.task_id order by a.attempt) as freed_at
  from (
    select f.task_id, f.attempt, f.started_at, f.ended_at
    from holdfast.failure f
    union all
    select n.task_id, n.attempt, n.started_at, n.ended_at
    from holdfast.attempt n
    where n.attempt > 1 or n.state <> 'c'
  ) a
) h
where h.started_at < h.freed_at - interval '1 second';

-- name: a_lease_is_granted_once() -> rows
-- No two attempts of a task had the same lease token.
select f.task_id
from holdfast.failure f
join holdfast.attempt a on a.task_id = f.task_id and a.lease_token = f.lease_token
union all
select t.task_id
from holdfast.live t
join holdfast.attempt a on a.task_id = t.task_id and a.lease_token = t.lease_token
union all
select t.task_id
from holdfast.live t
join holdfast.failure f on f.task_id = t.task_id and f.lease_token = t.lease_token;

-- name: a_running_attempt_has_a_lease() -> rows
-- Running and reserved tasks have a lease token, a start and a lease expiry.
select t.task_id
from holdfast.live t
where t.state in ('r', 'v') and (t.lease_token is null or t.lease_expires_at is null or t.started_at is null);

-- name: an_idle_task_has_no_lease() -> rows
-- Queued and waiting tasks have no lease and no worker.
select t.task_id
from holdfast.live t
where t.state in ('q', 'w')
  and (t.lease_token is not null or t.lease_expires_at is not null or t.started_at is not null or t.worker_id is not null);

-- name: a_running_attempt_has_a_worker() -> rows
-- Every running attempt belongs to a registered worker.
select t.task_id
from holdfast.live t
left join holdfast.worker w on w.worker_id = t.worker_id
where t.state = 'r' and w.worker_id is null;

-- name: a_worker_that_left_says_when() -> rows
-- A worker has an end time if and only if it is gone or lost.
select w.worker_id
from holdfast.worker w
where (w.state in ('gone', 'lost')) <> (w.ended_at is not null);

-- name: budgets_hold() -> rows
-- No generation retried more often than its budget allows, after failures or after losses.
with spent as (
  select f.task_id,
    count(*) filter (where f.decision = 'retry' and f.state in ('f', 't')) as retries,
    count(*) filter (where f.decision = 'retry' and f.state = 'l') as losses,
    1 + count(*) filter (where f.decision = 'stop') as generations
  from holdfast.failure f
  group by f.task_id
),
allowed as (
  select task_id, max_retries, max_losses, generation
  from holdfast.live
  union all
  select task_id, max_retries, max_losses, generation
  from holdfast.ended
  union all
  select b.task_id, p.max_retries, p.max_losses, a.generation
  from holdfast.attempt a
  join holdfast.body b on b.task_id = a.task_id
  join holdfast.policy p on p.policy_id = b.policy_id
  where a.state = 'c'
)
select spent.task_id, spent.retries, spent.losses
from spent
join allowed on allowed.task_id = spent.task_id
where spent.retries > allowed.max_retries * greatest(spent.generations, allowed.generation)
  or spent.losses > allowed.max_losses * greatest(spent.generations, allowed.generation);

-- name: budgets_are_counted_right() -> rows
-- In its first generation a task counts exactly the retries in its history: those after a failure or timeout, and those
-- that an operator requested after it had stopped.
with counted as (
  select task_id, retries, losses, attempt + 1 as before
  from holdfast.live
  where generation = 1
  union all
  select task_id, retries, losses, attempt
  from holdfast.ended
  where generation = 1
)
select counted.task_id, counted.retries, counted.losses
from counted
cross join lateral (
  select
    count(*) filter (
      where f.decision = 'retry' and f.state in ('f', 't') or f.decision = 'stop' and f.attempt < counted.before
    ) as retries,
    count(*) filter (where f.decision = 'retry' and f.state = 'l') as losses
  from holdfast.failure f
  where f.task_id = counted.task_id
) spent
where counted.retries <> spent.retries or counted.losses <> spent.losses;

-- name: a_failed_task_has_a_failure() -> rows
-- A task that failed for good has the failure that ended it, with the decision to stop.
select e.task_id
from holdfast.ended e
left join holdfast.failure f on f.task_id = e.task_id and f.attempt = e.attempt and f.decision = 'stop'
where e.state = 'f' and f.task_id is null;

-- name: a_waiting_retry_has_a_failure() -> rows
-- A task that waits for its retry has the failure that caused it.
select t.task_id
from holdfast.live t
left join holdfast.failure f on f.task_id = t.task_id and f.attempt = t.attempt and f.decision = 'retry'
where t.state = 'w' and t.is_retrying and f.task_id is null;

-- name: expired_leases_are_reaped() -> rows
-- Warning: a lease expired more than a minute ago and was not reaped. Does any worker or server run?
select t.task_id
from holdfast.live t
where t.state in ('r', 'v') and t.lease_expires_at < holdfast.instant() - interval '1 minute';

-- name: dead_workers_hold_nothing() -> rows
-- Warning: a worker left more than a minute ago and its attempts were not reaped.
select t.task_id
from holdfast.live t
join holdfast.worker w on w.worker_id = t.worker_id
where t.state = 'r' and w.state = 'gone' and w.ended_at < holdfast.instant() - interval '1 minute';
