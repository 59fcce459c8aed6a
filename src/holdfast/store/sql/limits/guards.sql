-- name: declare_breaker
-- Store the breaker that an action declares. Counts under another window are void. Of its trials at least one is left
-- to pass, because passing is what closes a half-open breaker. An unchanged declaration draws no id.
with recorded as (
  insert into holdfast.breaker as b (tenant_id, action, share, attempts_min, window_seconds, open_seconds, trials)
  select $1, $2::text, $3::double precision, $4::int, $5::double precision, $6::double precision, $7::int
  where not exists (
    select from holdfast.breaker b
    where b.tenant_id = $1 and b.action = $2::text
      and (b.share, b.attempts_min, b.window_seconds, b.open_seconds, b.trials)
        = ($3::double precision, $4::int, $5::double precision, $6::double precision, $7::int)
  )
  on conflict (tenant_id, action) do update
  set share = excluded.share, attempts_min = excluded.attempts_min, window_seconds = excluded.window_seconds,
    open_seconds = excluded.open_seconds, trials = excluded.trials, passed = least(b.passed, excluded.trials - 1)
  where (b.share, b.attempts_min, b.window_seconds, b.open_seconds, b.trials)
    is distinct from (excluded.share, excluded.attempts_min, excluded.window_seconds, excluded.open_seconds, excluded.trials)
  returning b.breaker_id
)
delete from holdfast.tally t
where t.guard_id in (select breaker_id from recorded);

-- name: forget_breaker
-- Delete the breaker of an action that declares none any more.
with deleted as (
  delete from holdfast.breaker b
  where b.tenant_id = $1 and b.action = $2
  returning b.breaker_id
)
delete from holdfast.tally t
where t.guard_id in (select breaker_id from deleted);

-- name: tally_outcomes
-- Count the outcomes of guarded actions: only those that this very transaction stored, so a repeated or refused report
-- counts nothing. `passed` and `failed` are trials, begun since the breaker became half-open.
with given as (
  select *
  from unnest($1::bigint[], $2::int[], $3::int[], $4::boolean[]) as g (task_id, attempt, lane_id, is_failure)
),
stored as (
  select given.lane_id, given.is_failure, coalesce(a.started_at, f.started_at) as started_at
  from given
  left join lateral (
    select a.started_at
    from holdfast.attempt a
    where a.task_id = given.task_id and a.attempt = given.attempt and a.xmin = pg_current_xact_id()::xid
  ) a on true
  left join lateral (
    select f.started_at
    from holdfast.failure f
    where f.task_id = given.task_id and f.attempt = given.attempt and f.xmin = pg_current_xact_id()::xid
  ) f on true
),
seen as (
  select b.breaker_id, b.state, b.since, holdfast.current_slice(b.window_seconds) as slice, count(*) as whole,
    count(*) filter (where s.is_failure) as part,
    count(*) filter (where b.state = 'h' and s.started_at >= b.since and not s.is_failure) as passed,
    count(*) filter (where b.state = 'h' and s.started_at >= b.since and s.is_failure) as failed
  from stored s
  join holdfast.lane l on l.lane_id = s.lane_id
  join holdfast.breaker b on b.tenant_id = l.tenant_id and b.action = l.action
  where s.started_at is not null
  group by b.breaker_id
),
counted as (
  insert into holdfast.tally as t (guard_id, slot, shard, slice, whole, part)
  select breaker_id, slice % 16, pg_backend_pid() % 8, slice, whole, part
  from seen
  where state = 'c'
  order by breaker_id
  on conflict (guard_id, slot, shard) do update
  set whole = excluded.whole + case when t.slice = excluded.slice then t.whole else 0 end,
    part = excluded.part + case when t.slice = excluded.slice then t.part else 0 end,
    slice = excluded.slice
)
select breaker_id, state::text as state, since, part, passed, failed
from seen
order by breaker_id;

-- name: windows
-- Return the recent counts of breakers and quotas, slice by slice.
select t.guard_id, t.slice, sum(t.whole)::bigint as whole, sum(t.part)::bigint as part
from holdfast.tally t
where t.guard_id = any($1::bigint[])
group by t.guard_id, t.slice;

-- name: read_breakers
-- Return breakers by id.
select b.breaker_id, b.share, b.attempts_min, b.window_seconds, b.open_seconds, b.trials, b.state::text as state, b.since,
  b.passed, extract(epoch from holdfast.instant())::double precision as at
from holdfast.breaker b
where b.breaker_id = any($1::bigint[])
order by b.breaker_id;

-- name: open_breaker
-- Open a breaker, if it is still in the state and period that the decision is based on.
with opened as (
  update holdfast.breaker b
  set state = 'o', since = holdfast.instant(), trial_at = holdfast.instant() + make_interval(secs => b.open_seconds),
    passed = 0, attempts = $4, failures = $5, cause = $6, actor = '', reason = ''
  where b.breaker_id = $1 and b.state = $2::text::"char" and b.since = $3
  returning b.tenant_id, b.action
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'breaker.opened', '{}', '{}', jsonb_build_object('action', action, 'attempts', $4::bigint,
    'failures', $5::bigint, 'cause', $6::text)
  from opened
)
select count(*) = 1 as is_changed
from opened;

-- name: pass_trials
-- Count passed trials of this half-open period; return how many have passed.
update holdfast.breaker b
set passed = least(b.trials, b.passed + $3::int)
where b.breaker_id = $1 and b.state = 'h' and b.since = $2
returning b.passed;

-- name: close_breaker
-- Close a half-open breaker whose trials passed. Its counts start again at zero.
with closed as (
  update holdfast.breaker b
  set state = 'c', since = holdfast.instant(), passed = 0, attempts = 0, failures = 0, cause = '', actor = '', reason = ''
  where b.breaker_id = $1 and b.state = 'h' and b.since = $2
  returning b.breaker_id, b.tenant_id, b.action
),
reset_counts as (
  delete from holdfast.tally t
  where t.guard_id in (select breaker_id from closed)
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'breaker.closed', '{}', '{}', jsonb_build_object('action', action)
  from closed
)
select array_agg(l.lane_id) as lanes
from closed
join holdfast.lane l on l.tenant_id = closed.tenant_id and l.action = closed.action;

-- name: try_trials
-- Lock the trials of half-open breakers until this transaction ends, and return those that could be locked. As with
-- limits, a claim never waits.
select b.breaker_id
from unnest($1::bigint[]) as b (breaker_id)
where pg_try_advisory_xact_lock(1752132968, (b.breaker_id % 2147483648)::int);

-- name: begin_trials
-- Make open breakers half-open when their time has come. A breaker that another transaction is changing is left to the
-- next claim.
with due as materialized (
  select b.breaker_id
  from holdfast.breaker b
  where b.breaker_id = any($1::bigint[]) and b.state = 'o' and b.trial_at <= holdfast.instant()
  for update of b skip locked
),
begun as (
  update holdfast.breaker b
  set state = 'h', since = holdfast.instant(), trial_at = null, passed = 0
  where b.breaker_id = any(array(select breaker_id from due))
  returning b.tenant_id, b.action
)
insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
select tenant_id, 'breaker.half_open', '{}', '{}', jsonb_build_object('action', action)
from begun;

-- name: trials
-- Return half-open breakers and their running trials, counted from leased rows under `try_trials`, so no counter can
-- drift.
select b.breaker_id, b.trials, b.passed,
  (
    select count(*)::int
    from holdfast.live t
    join holdfast.lane l on l.lane_id = t.lane_id
    where t.state in ('r', 'v') and l.tenant_id = b.tenant_id and l.action = b.action and t.started_at >= b.since
  ) as running
from holdfast.breaker b
where b.breaker_id = any($1::bigint[]) and b.state = 'h';

-- name: steer_breaker
-- Open, close or reset a breaker by hand ($3 o, c, h): its counts start again at zero, and a reset one is tried now
-- unless it is closed. Returns its previous state.
with was as materialized (
  select b.breaker_id, b.state::text as state, b.attempts, b.failures
  from holdfast.breaker b
  where b.tenant_id = $1 and b.action = $2
  for update of b
),
steered as (
  update holdfast.breaker b
  set state = (case when $3::text = 'h' and was.state = 'c' then 'c' else $3::text end)::"char",
    since = holdfast.instant(), trial_at = null, passed = 0, attempts = 0, failures = 0, cause = '', actor = $4,
    reason = $5
  from was
  where b.breaker_id = was.breaker_id
  returning b.breaker_id, b.tenant_id, b.action, b.state::text as state
),
reset_counts as (
  delete from holdfast.tally t
  where t.guard_id in (select breaker_id from steered)
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, case $3::text when 'o' then 'breaker.opened' when 'c' then 'breaker.closed' else 'breaker.reset' end,
    '{}', '{}', jsonb_build_object('action', action, 'actor', $4::text, 'reason', $5::text)
  from steered
)
select was.state as was, was.attempts, was.failures, steered.state,
  array(select l.lane_id from holdfast.lane l where l.tenant_id = steered.tenant_id and l.action = steered.action) as lanes
from steered
join was on was.breaker_id = steered.breaker_id;

-- name: lock_quota_parts
-- Lock the quotas of a tenant for a change of parts of them, until the transaction ends. An advisory lock, because
-- there may be no row to lock yet.
select pg_advisory_xact_lock(1752132970, $1);

-- name: quota_now
-- Return the quota of a queue, or of the tenant.
select k.retries_max, k.share, k.window_seconds
from holdfast.quota k
left join holdfast.queue q on q.queue_id = k.queue_id
where k.tenant_id = $1 and k.action is null and q.name is not distinct from $2::text;

-- name: declare_quota
-- Set the quota of an action, a queue or the tenant. Counts under another window are void. Returns the previous quota,
-- if any. An unchanged quota draws no id.
with was as materialized (
  select k.retries_max, k.share, k.window_seconds
  from holdfast.quota k
  left join holdfast.queue q on q.queue_id = k.queue_id
  where k.tenant_id = $1 and k.action is not distinct from $2::text and q.name is not distinct from $3::text
  for update of k
),
recorded as (
  insert into holdfast.quota as k (tenant_id, action, queue_id, retries_max, share, window_seconds, actor, reason)
  select $1, $2::text, q.queue_id, $4::int, $5::double precision, $6, $7, $8
  from (select count(*) from was) one
  left join holdfast.queue q on q.tenant_id = $1 and q.name = $3
  where ($3::text is null or q.queue_id is not null)
    and not exists (
      select from was
      where (was.retries_max, was.share, was.window_seconds)
        is not distinct from ($4::int, $5::double precision, $6::double precision)
    )
  on conflict (tenant_id, action, queue_id) do update
  set retries_max = excluded.retries_max, share = excluded.share, window_seconds = excluded.window_seconds,
    actor = excluded.actor, reason = excluded.reason, changed_at = holdfast.instant(), booked_until = null
  where (k.retries_max, k.share, k.window_seconds)
    is distinct from (excluded.retries_max, excluded.share, excluded.window_seconds)
  returning k.quota_id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select $1, 'quota.set', '{}', '{}', jsonb_strip_nulls(jsonb_build_object('action', $2::text, 'queue', $3::text,
    'retries', $4::int, 'share', $5::double precision, 'window_seconds', $6::double precision, 'actor', $7::text,
    'reason', $8::text))
  from recorded
),
reset_counts as (
  delete from holdfast.tally t
  where t.guard_id in (select quota_id from recorded)
)
select was.retries_max, was.share, was.window_seconds
from recorded
left join was on true;

-- name: forget_quota
-- Remove the quota of an action, a queue or the tenant. Returns the previous quota.
with deleted as (
  delete from holdfast.quota k
  using (select 1) one
  left join holdfast.queue q on q.tenant_id = $1 and q.name = $3
  where k.tenant_id = $1 and k.action is not distinct from $2::text and k.queue_id is not distinct from q.queue_id
    and ($3::text is null or q.queue_id is not null)
  returning k.quota_id, k.retries_max, k.share, k.window_seconds
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select $1, 'quota.lifted', '{}', '{}', jsonb_strip_nulls(jsonb_build_object('action', $2::text, 'queue', $3::text,
    'actor', $4::text, 'reason', $5::text))
  from deleted
),
reset_counts as (
  delete from holdfast.tally t
  where t.guard_id in (select quota_id from deleted)
)
select retries_max, share, window_seconds
from deleted;

-- name: hasten_retries
-- After a change of a quota, make the retries that it postponed due at the end of their own backoff, to be counted
-- again. If several quotas postponed a retry, the others postpone it again.
with locked as materialized (
  select t.task_id, f.retry_at
  from holdfast.live t
  join holdfast.lane l on l.lane_id = t.lane_id
  join holdfast.failure f on f.task_id = t.task_id and f.attempt = t.attempt
  where t.state = 'w' and t.due_at > holdfast.instant() and t.is_retrying and f.retry_at < t.due_at
    and l.tenant_id = $1 and ($2::text is null or l.action = $2)
    and ($3::text is null or l.queue_id = (select q.queue_id from holdfast.queue q where q.tenant_id = $1 and q.name = $3))
  limit $4
  for update of t skip locked
),
moved as (
  update holdfast.live t
  set due_at = locked.retry_at
  from locked
  where t.task_id = locked.task_id and t.task_id = any(array(select task_id from locked))
  returning t.task_id
)
select count(*)::int
from moved;

-- name: lock_quotas
-- Lock the quotas over these lanes, in order of id, so that one process at a time counts retries. Returns the lanes
-- that each covers.
select k.quota_id, k.retries_max, k.share, k.window_seconds,
  extract(epoch from holdfast.instant())::double precision as at,
  coalesce(extract(epoch from k.booked_until - holdfast.instant()), 0)::double precision as booked_seconds,
  array(select l.lane_id from holdfast.lane l where l.lane_id = any($1::int[]) and holdfast.quota_covers(k, l)) as lanes
from holdfast.quota k
where exists (select from holdfast.lane l where l.lane_id = any($1::int[]) and holdfast.quota_covers(k, l))
order by k.quota_id
for update of k;

-- name: admit_retries
-- Make due retries claimable that their quotas admit.
update holdfast.live t
set state = 'q', due_at = null, is_retrying = false
where t.task_id = any($1::bigint[]) and t.state = 'w' and t.due_at <= holdfast.instant()
returning t.lane_id;

-- name: postpone_retries
-- Postpone due retries for which their quota has no capacity.
update holdfast.live t
set due_at = holdfast.instant() + make_interval(secs => ($2::double precision[])[array_position($1::bigint[], t.task_id)])
where t.task_id = any($1::bigint[]) and t.state = 'w' and t.is_retrying and t.due_at <= holdfast.instant()
returning t.task_id;

-- name: spend_quotas
-- Count admitted retries, and store how far ahead the postponed ones are spread. Requires `lock_quotas`.
with given as (
  select g.quota_id, g.retries, g.booked_seconds, holdfast.current_slice(k.window_seconds) as slice
  from unnest($1::bigint[], $2::int[], $3::double precision[]) as g (quota_id, retries, booked_seconds)
  join holdfast.quota k on k.quota_id = g.quota_id
),
booked as (
  update holdfast.quota k
  set booked_until = holdfast.instant() + make_interval(secs => given.booked_seconds)
  from given
  where k.quota_id = given.quota_id and given.booked_seconds is not null
)
insert into holdfast.tally as t (guard_id, slot, shard, slice, whole, part)
select quota_id, slice % 16, -1, slice, 0, retries
from given
where retries > 0
order by quota_id
on conflict (guard_id, slot, shard) do update
set part = excluded.part + case when t.slice = excluded.slice then t.part else 0 end, slice = excluded.slice;

-- name: tally_starts
-- Count first attempts for the quotas that allow retries as a share of them.
with given as (
  select k.quota_id, holdfast.current_slice(k.window_seconds) as slice, sum(g.started)::bigint as started
  from unnest($1::int[], $2::int[]) as g (lane_id, started)
  join holdfast.lane l on l.lane_id = g.lane_id
  join holdfast.quota k on k.share is not null and holdfast.quota_covers(k, l)
  group by k.quota_id
)
insert into holdfast.tally as t (guard_id, slot, shard, slice, whole, part)
select quota_id, slice % 16, pg_backend_pid() % 8, slice, started, 0
from given
order by quota_id
on conflict (guard_id, slot, shard) do update
set whole = excluded.whole + case when t.slice = excluded.slice then t.whole else 0 end,
  part = excluded.part + case when t.slice = excluded.slice then t.part else 0 end,
  slice = excluded.slice;

-- name: show_breaker
-- Return the breaker of one action in full. One that is due for a trial is shown as half-open.
select b.breaker_id, b.action,
  case when b.state = 'c' then 'closed' when b.state = 'h' or b.trial_at <= holdfast.instant() then 'half_open'
    else 'open' end as state,
  b.since, b.trial_at, b.passed, b.share, b.attempts_min, b.window_seconds, b.open_seconds, b.trials, b.attempts,
  b.failures, b.cause, b.actor, b.reason, extract(epoch from holdfast.instant())::double precision as at,
  case when b.state <> 'h' then 0 else (
    select count(*)::int
    from holdfast.live t
    join holdfast.lane l on l.lane_id = t.lane_id
    where t.state in ('r', 'v') and l.tenant_id = b.tenant_id and l.action = b.action and t.started_at >= b.since
  ) end as running
from holdfast.breaker b
where b.tenant_id = $1 and b.action = $2;

-- name: show_quotas
-- Return the quotas over one lane ($2), or all of a tenant ($2 null), with their scope.
select k.quota_id, case when k.action is not null then 'action' when k.queue_id is not null then 'queue' else 'tenant' end
    as scope,
  coalesce(k.action, q.name, n.name) as name, k.retries_max, k.share, k.window_seconds, k.actor, k.reason, k.changed_at,
  extract(epoch from holdfast.instant())::double precision as at
from holdfast.quota k
join holdfast.tenant n on n.tenant_id = k.tenant_id
left join holdfast.queue q on q.queue_id = k.queue_id
where k.tenant_id = $1
  and ($2::int is null or exists (select from holdfast.lane l where l.lane_id = $2 and holdfast.quota_covers(k, l)))
order by scope, name;

-- name: read_guarded
-- Return which of these actions have a breaker or a quota.
select a.action,
  exists (select from holdfast.breaker b where b.tenant_id = $1 and b.action = a.action) as has_breaker,
  exists (select from holdfast.quota k where k.tenant_id = $1 and k.action = a.action) as has_quota
from unnest($2::text[]) as a (action);
