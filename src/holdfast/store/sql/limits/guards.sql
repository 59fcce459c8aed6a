-- name: declare_breaker(tenant_id, action, share, attempts_min, window_seconds, open_seconds, trials) -> nothing
-- Store the breaker that an action declares. Counts under another window are void. Of its trials at least one is left
-- to pass, because passing is what closes a half-open breaker. An unchanged declaration draws no id.
with recorded as (
  insert into holdfast.breaker as b (tenant_id, action, share, attempts_min, window_seconds, open_seconds, trials)
  select @tenant_id, @action::text, @share::double precision, @attempts_min::int, @window_seconds::double precision, @open_seconds::double precision, @trials::int
  where not exists (
    select from holdfast.breaker b
    where b.tenant_id = @tenant_id and b.action = @action::text
      and (b.share, b.attempts_min, b.window_seconds, b.open_seconds, b.trials)
        = (@share::double precision, @attempts_min::int, @window_seconds::double precision, @open_seconds::double precision, @trials::int)
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

-- name: delete_breaker(tenant_id, action) -> nothing
-- Delete the breaker of an action that declares none any more.
with deleted as (
  delete from holdfast.breaker b
  where b.tenant_id = @tenant_id and b.action = @action
  returning b.breaker_id
)
delete from holdfast.tally t
where t.guard_id in (select breaker_id from deleted);

-- name: tally_outcomes(task_ids, attempts, lane_ids, is_failure) -> rows
-- Count the outcomes of guarded actions: only those that this very transaction stored, so a repeated or refused report
-- counts nothing. `passed` and `failed` are trials, begun since the breaker became half-open.
with given as (
  select *
  from unnest(@task_ids::bigint[], @attempts::int[], @lane_ids::int[], @is_failure::boolean[]) as g (task_id, attempt, lane_id, is_failure)
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

-- name: windows(guard_ids) -> rows
-- Return the recent counts of breakers and quotas, slice by slice.
select t.guard_id, t.slice, sum(t.whole)::bigint as whole, sum(t.part)::bigint as part
from holdfast.tally t
where t.guard_id = any(@guard_ids::bigint[])
group by t.guard_id, t.slice;

-- name: read_breakers(breaker_ids) -> rows
-- Return breakers by id.
select b.breaker_id, b.share, b.attempts_min, b.window_seconds, b.open_seconds, b.trials, b.state::text as state, b.since,
  b.passed, extract(epoch from holdfast.instant())::double precision as at
from holdfast.breaker b
where b.breaker_id = any(@breaker_ids::bigint[])
order by b.breaker_id;

-- name: open_breaker(breaker_id, state, since, attempts, failures, cause) -> nothing
-- Open a breaker, if it is still in the state and period that the decision is based on.
with opened as (
  update holdfast.breaker b
  set state = 'o', since = holdfast.instant(), trial_at = holdfast.instant() + make_interval(secs => b.open_seconds),
    passed = 0, attempts = @attempts, failures = @failures, cause = @cause, actor = '', reason = ''
  where b.breaker_id = @breaker_id and b.state = @state::text::"char" and b.since = @since
  returning b.tenant_id, b.action
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'breaker.opened', '{}', '{}', jsonb_build_object('action', action, 'attempts', @attempts::bigint,
    'failures', @failures::bigint, 'cause', @cause::text)
  from opened
)
select count(*) = 1 as is_changed
from opened;

-- name: pass_trials(breaker_id, since, passed) -> value?
-- Count passed trials of this half-open period; return how many have passed.
update holdfast.breaker b
set passed = least(b.trials, b.passed + @passed::int)
where b.breaker_id = @breaker_id and b.state = 'h' and b.since = @since
returning b.passed;

-- name: close_breaker(breaker_id, since) -> value?
-- Close a half-open breaker whose trials passed. Its counts start again at zero.
with closed as (
  update holdfast.breaker b
  set state = 'c', since = holdfast.instant(), passed = 0, attempts = 0, failures = 0, cause = '', actor = '', reason = ''
  where b.breaker_id = @breaker_id and b.state = 'h' and b.since = @since
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

-- name: try_trials(breaker_ids) -> rows
-- Lock the trials of half-open breakers until this transaction ends, and return those that could be locked. As with
-- limits, a claim never waits.
select b.breaker_id
from unnest(@breaker_ids::bigint[]) as b (breaker_id)
where pg_try_advisory_xact_lock(1752132968, (b.breaker_id % 2147483648)::int);

-- name: begin_trials(breaker_ids) -> nothing
-- Make open breakers half-open when their time has come. A breaker that another transaction is changing is left to the
-- next claim.
with due as materialized (
  select b.breaker_id
  from holdfast.breaker b
  where b.breaker_id = any(@breaker_ids::bigint[]) and b.state = 'o' and b.trial_at <= holdfast.instant()
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

-- name: trials(breaker_ids) -> rows
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
where b.breaker_id = any(@breaker_ids::bigint[]) and b.state = 'h';

-- name: set_breaker_state(tenant_id, action, circuit_codes, actor, reason) -> row?
-- Open, close or reset a breaker by hand (@circuit_codes o, c, h): its counts start again at zero, and a reset one is tried now
-- unless it is closed. Returns its previous state.
with was as materialized (
  select b.breaker_id, b.state::text as state, b.attempts, b.failures
  from holdfast.breaker b
  where b.tenant_id = @tenant_id and b.action = @action
  for update of b
),
steered as (
  update holdfast.breaker b
  set state = (case when @circuit_codes::text = 'h' and was.state = 'c' then 'c' else @circuit_codes::text end)::"char",
    since = holdfast.instant(), trial_at = null, passed = 0, attempts = 0, failures = 0, cause = '', actor = @actor,
    reason = @reason
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
  select tenant_id, case @circuit_codes::text when 'o' then 'breaker.opened' when 'c' then 'breaker.closed' else 'breaker.reset' end,
    '{}', '{}', jsonb_build_object('action', action, 'actor', @actor::text, 'reason', @reason::text)
  from steered
)
select was.state as was, was.attempts, was.failures, steered.state,
  array(select l.lane_id from holdfast.lane l where l.tenant_id = steered.tenant_id and l.action = steered.action) as lanes
from steered
join was on was.breaker_id = steered.breaker_id;

-- name: lock_quota_parts(tenant_id) -> nothing
-- Lock the quotas of a tenant for a change of parts of them, until the transaction ends. An advisory lock, because
-- there may be no row to lock yet.
select pg_advisory_xact_lock(1752132970, @tenant_id);

-- name: quota_now(tenant_id, queue?) -> row?
-- nullable: retries_max, share
-- Return the quota of a queue, or of the tenant.
select k.retries_max, k.share, k.window_seconds
from holdfast.quota k
left join holdfast.queue q on q.queue_id = k.queue_id
where k.tenant_id = @tenant_id and k.action is null and q.name is not distinct from @queue::text;

-- name: declare_quota(tenant_id, action?, queue?, retries_max?, share?, window_seconds, actor, reason) -> row?
-- nullable: retries_max, share, window_seconds
-- Set the quota of an action, a queue or the tenant. Counts under another window are void. Returns the previous quota,
-- if any. An unchanged quota draws no id.
with was as materialized (
  select k.retries_max, k.share, k.window_seconds
  from holdfast.quota k
  left join holdfast.queue q on q.queue_id = k.queue_id
  where k.tenant_id = @tenant_id and k.action is not distinct from @action::text and q.name is not distinct from @queue::text
  for update of k
),
recorded as (
  insert into holdfast.quota as k (tenant_id, action, queue_id, retries_max, share, window_seconds, actor, reason)
  select @tenant_id, @action::text, q.queue_id, @retries_max::int, @share::double precision, @window_seconds, @actor, @reason
  from (select count(*) from was) one
  left join holdfast.queue q on q.tenant_id = @tenant_id and q.name = @queue
  where (@queue::text is null or q.queue_id is not null)
    and not exists (
      select from was
      where (was.retries_max, was.share, was.window_seconds)
        is not distinct from (@retries_max::int, @share::double precision, @window_seconds::double precision)
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
  select @tenant_id, 'quota.set', '{}', '{}', jsonb_strip_nulls(jsonb_build_object('action', @action::text, 'queue', @queue::text,
    'retries', @retries_max::int, 'share', @share::double precision, 'window_seconds', @window_seconds::double precision, 'actor', @actor::text,
    'reason', @reason::text))
  from recorded
),
reset_counts as (
  delete from holdfast.tally t
  where t.guard_id in (select quota_id from recorded)
)
select was.retries_max, was.share, was.window_seconds
from recorded
left join was on true;

-- name: delete_quota(tenant_id, action?, queue?, actor, reason) -> row?
-- nullable: retries_max, share
-- Remove the quota of an action, a queue or the tenant. Returns the previous quota.
with deleted as (
  delete from holdfast.quota k
  using (select 1) one
  left join holdfast.queue q on q.tenant_id = @tenant_id and q.name = @queue
  where k.tenant_id = @tenant_id and k.action is not distinct from @action::text and k.queue_id is not distinct from q.queue_id
    and (@queue::text is null or q.queue_id is not null)
  returning k.quota_id, k.retries_max, k.share, k.window_seconds
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select @tenant_id, 'quota.lifted', '{}', '{}', jsonb_strip_nulls(jsonb_build_object('action', @action::text, 'queue', @queue::text,
    'actor', @actor::text, 'reason', @reason::text))
  from deleted
),
reset_counts as (
  delete from holdfast.tally t
  where t.guard_id in (select quota_id from deleted)
)
select retries_max, share, window_seconds
from deleted;

-- name: hasten_retries(tenant_id, action?, queue?, limit) -> value?
-- After a change of a quota, make the retries that it postponed due at the end of their own backoff, to be counted
-- again. If several quotas postponed a retry, the others postpone it again.
with locked as materialized (
  select t.task_id, f.retry_at
  from holdfast.live t
  join holdfast.lane l on l.lane_id = t.lane_id
  join holdfast.failure f on f.task_id = t.task_id and f.attempt = t.attempt
  where t.state = 'w' and t.due_at > holdfast.instant() and t.is_retrying and f.retry_at < t.due_at
    and l.tenant_id = @tenant_id and (@action::text is null or l.action = @action)
    and (@queue::text is null or l.queue_id = (select q.queue_id from holdfast.queue q where q.tenant_id = @tenant_id and q.name = @queue))
  limit @limit
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

-- name: lock_quotas(lane_ids) -> rows
-- nullable: retries_max, share
-- Lock the quotas over these lanes, in order of id, so that one process at a time counts retries. Returns the lanes
-- that each covers.
select k.quota_id, k.retries_max, k.share, k.window_seconds,
  extract(epoch from holdfast.instant())::double precision as at,
  coalesce(extract(epoch from k.booked_until - holdfast.instant()), 0)::double precision as booked_seconds,
  array(select l.lane_id from holdfast.lane l where l.lane_id = any(@lane_ids::int[]) and holdfast.quota_covers(k, l)) as lanes
from holdfast.quota k
where exists (select from holdfast.lane l where l.lane_id = any(@lane_ids::int[]) and holdfast.quota_covers(k, l))
order by k.quota_id
for update of k;

-- name: admit_retries(task_ids) -> rows
-- Make due retries claimable that their quotas admit.
update holdfast.live t
set state = 'q', due_at = null, is_retrying = false
where t.task_id = any(@task_ids::bigint[]) and t.state = 'w' and t.due_at <= holdfast.instant()
returning t.lane_id;

-- name: postpone_retries(task_ids, delay_seconds) -> nothing
-- Postpone due retries for which their quota has no capacity.
update holdfast.live t
set due_at = holdfast.instant() + make_interval(secs => (@delay_seconds::double precision[])[array_position(@task_ids::bigint[], t.task_id)])
where t.task_id = any(@task_ids::bigint[]) and t.state = 'w' and t.is_retrying and t.due_at <= holdfast.instant()
returning t.task_id;

-- name: spend_quotas(quota_ids, retries, booked_seconds[?]) -> nothing
-- Count admitted retries, and store how far ahead the postponed ones are spread. Requires `lock_quotas`.
with given as (
  select g.quota_id, g.retries, g.booked_seconds, holdfast.current_slice(k.window_seconds) as slice
  from unnest(@quota_ids::bigint[], @retries::int[], @booked_seconds::double precision[]) as g (quota_id, retries, booked_seconds)
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

-- name: tally_starts(lane_ids, started) -> nothing
-- Count first attempts for the quotas that allow retries as a share of them.
with given as (
  select k.quota_id, holdfast.current_slice(k.window_seconds) as slice, sum(g.started)::bigint as started
  from unnest(@lane_ids::int[], @started::int[]) as g (lane_id, started)
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

-- name: show_breaker(tenant_id, action) -> row?
-- nullable: trial_at
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
where b.tenant_id = @tenant_id and b.action = @action;

-- name: show_quotas(tenant_id, lane_id?) -> rows
-- nullable: retries_max, share
-- Return the quotas over one lane (@lane_id), or all of a tenant (@lane_id null), with their scope.
select k.quota_id, case when k.action is not null then 'action' when k.queue_id is not null then 'queue' else 'tenant' end
    as scope,
  coalesce(k.action, q.name, n.name) as name, k.retries_max, k.share, k.window_seconds, k.actor, k.reason, k.changed_at,
  extract(epoch from holdfast.instant())::double precision as at
from holdfast.quota k
join holdfast.tenant n on n.tenant_id = k.tenant_id
left join holdfast.queue q on q.queue_id = k.queue_id
where k.tenant_id = @tenant_id
  and (@lane_id::int is null or exists (select from holdfast.lane l where l.lane_id = @lane_id and holdfast.quota_covers(k, l)))
order by scope, name;

-- name: read_guarded(tenant_id, actions) -> rows
-- Return which of these actions have a breaker or a quota.
select a.action,
  exists (select from holdfast.breaker b where b.tenant_id = @tenant_id and b.action = a.action) as has_breaker,
  exists (select from holdfast.quota k where k.tenant_id = @tenant_id and k.action = a.action) as has_quota
from unnest(@actions::text[]) as a (action);
