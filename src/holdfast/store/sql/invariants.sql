-- name: no_task_is_lost
-- Every accepted task is live, completed or ended.
select b.task_id
from holdfast.body b
left join holdfast.live t on t.task_id = b.task_id
left join holdfast.ended e on e.task_id = b.task_id
left join holdfast.attempt a on a.task_id = b.task_id and a.state = 'c'
where t.task_id is null and e.task_id is null and a.task_id is null;

-- name: every_live_task_has_a_body
-- A task that can run still has what was asked for, unless a run knows.
select t.task_id
from holdfast.live t
left join holdfast.body b on b.task_id = t.task_id
where b.task_id is null and t.run_id is null;

-- name: every_ended_task_has_a_body
-- A task that may be run again still has what was asked for, unless a run knows.
select e.task_id
from holdfast.ended e
left join holdfast.body b on b.task_id = e.task_id
where b.task_id is null and e.run_id is null;

-- name: every_completed_task_has_a_body
-- A result belongs to a task, or to a node of a run or one of its items.
with span as (
  select r.run_id as first_id, r.run_id + r.nodes as last_id
  from holdfast.run r
  union all
  select n.items_first, n.items_first + n.items - 1
  from holdfast.item_span n
),
completed as (
  select a.task_id
  from holdfast.attempt a
  left join holdfast.body b on b.task_id = a.task_id
  where a.state = 'c' and b.task_id is null
),
-- Spans do not overlap: the one that began last before an id is the only one that may hold it.
placed as (
  select u.task_id, max(u.last_id) over (order by u.id, u.task_id nulls first) as covered_until
  from (
    select span.first_id as id, span.last_id, null::bigint as task_id
    from span
    union all
    select completed.task_id, null, completed.task_id
    from completed
  ) as u
)
select placed.task_id
from placed
where placed.task_id > coalesce(placed.covered_until, 0);

-- name: a_task_completes_once
-- At most one accepted completion per task and generation.
select a.task_id
from holdfast.attempt a
where a.state = 'c'
group by a.task_id, a.generation
having count(*) > 1;

-- name: a_completed_task_is_not_live
-- Nothing runs again after its completion was accepted.
select t.task_id
from holdfast.live t
join holdfast.attempt a on a.task_id = t.task_id and a.state = 'c'
where t.run_id is null or a.generation >= t.generation;

-- name: a_completed_task_has_not_failed
-- A completed task is neither failed nor canceled.
select e.task_id
from holdfast.ended e
join holdfast.attempt a on a.task_id = e.task_id and a.state = 'c'
where e.run_id is null or a.generation >= e.generation;

-- name: an_ended_task_is_not_live
-- A failed or canceled task does not run in the same generation.
select e.task_id
from holdfast.ended e
join holdfast.live t on t.task_id = e.task_id;

-- name: an_attempt_ends_once
-- No attempt both failed and ended without a failure.
select f.task_id
from holdfast.failure f
join holdfast.attempt a on a.task_id = f.task_id and a.attempt = f.attempt;

-- name: attempts_are_numbered_without_gaps
-- The attempts of a task are 1, 2, 3 …: each grant is newer than the last, none is missing and none is extra.
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

-- name: a_lease_is_granted_once
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

-- name: a_running_attempt_has_a_lease
-- Running and reserved tasks have a token, a start and an end of their lease.
select t.task_id
from holdfast.live t
where t.state in ('r', 'v') and (t.lease_token is null or t.lease_expires_at is null or t.started_at is null);

-- name: an_idle_task_has_no_lease
-- Queued and waiting tasks belong to nobody.
select t.task_id
from holdfast.live t
where t.state in ('q', 'w')
  and (t.lease_token is not null or t.lease_expires_at is not null or t.started_at is not null or t.worker_id is not null);

-- name: a_running_attempt_has_a_worker
-- Every running attempt belongs to a registered worker.
select t.task_id
from holdfast.live t
left join holdfast.worker w on w.worker_id = t.worker_id
where t.state = 'r' and w.worker_id is null;

-- name: a_worker_that_left_says_when
-- A worker has an end if and only if it is gone or lost.
select w.worker_id
from holdfast.worker w
where (w.state in ('gone', 'lost')) <> (w.ended_at is not null);

-- name: budgets_hold
-- No generation retried more often than it may, after failures or after losses.
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

-- name: budgets_are_counted_right
-- In its first generation a task counts exactly the retries its history shows.
with spent as (
  select f.task_id,
    count(*) filter (where f.decision = 'retry' and f.state in ('f', 't')) as retries,
    count(*) filter (where f.decision = 'retry' and f.state = 'l') as losses
  from holdfast.failure f
  group by f.task_id
),
counted as (
  select task_id, retries, losses
  from holdfast.live
  where generation = 1
  union all
  select task_id, retries, losses
  from holdfast.ended
  where generation = 1
)
select counted.task_id, counted.retries, counted.losses
from counted
left join spent on spent.task_id = counted.task_id
where counted.retries <> coalesce(spent.retries, 0) or counted.losses <> coalesce(spent.losses, 0);

-- name: a_failed_task_has_a_failure
-- A task that failed for good has the failure that ended it, with the decision to stop.
select e.task_id
from holdfast.ended e
left join holdfast.failure f on f.task_id = e.task_id and f.attempt = e.attempt and f.decision = 'stop'
where e.state = 'f' and f.task_id is null;

-- name: a_waiting_retry_has_a_failure
-- A task that waits for its retry has the failure that asked for it.
select t.task_id
from holdfast.live t
left join holdfast.failure f on f.task_id = t.task_id and f.attempt = t.attempt and f.decision = 'retry'
where t.state = 'w' and t.is_retrying and f.task_id is null;

-- name: only_published_transitions_happen
-- Recent events follow one another as the published table allows.
with recent as materialized (
  select e.seq, e.kind, e.task_ids
  from holdfast.event e
  order by e.xid desc, e.seq desc
  limit 20000
),
happened as (
  select task_id, recent.seq, recent.kind as next, lag(recent.kind) over (partition by task_id order by recent.seq) as last
  from recent
  cross join lateral unnest(recent.task_ids) as task_id
  where recent.kind in (
    'task.reserved', 'task.launch_failed', 'task.started', 'task.completed', 'task.retrying', 'task.released',
    'task.failed', 'task.canceled',
    'task.revived', 'task.skipped', 'task.upstream_failed'
  )
),
legal (last, next) as (
  values
    ('task.reserved', 'task.started'), ('task.reserved', 'task.retrying'), ('task.reserved', 'task.failed'),
    ('task.reserved', 'task.canceled'), ('task.reserved', 'task.launch_failed'),
    ('task.launch_failed', 'task.reserved'), ('task.launch_failed', 'task.canceled'), ('task.launch_failed', 'task.started'),
    ('task.started', 'task.completed'), ('task.started', 'task.retrying'), ('task.started', 'task.failed'),
    ('task.started', 'task.released'), ('task.started', 'task.canceled'),
    ('task.retrying', 'task.started'), ('task.retrying', 'task.reserved'), ('task.retrying', 'task.canceled'),
    ('task.released', 'task.started'), ('task.released', 'task.reserved'), ('task.released', 'task.canceled'),
    ('task.revived', 'task.started'), ('task.revived', 'task.reserved'), ('task.revived', 'task.canceled'),
    ('task.failed', 'task.revived'), ('task.canceled', 'task.revived'), ('task.completed', 'task.revived'),
    ('task.revived', 'task.revived'), ('task.skipped', 'task.revived'), ('task.upstream_failed', 'task.revived'),
    ('task.revived', 'task.skipped'), ('task.revived', 'task.upstream_failed'),
    -- A node that runs no task may end as it begins, and a wait may be skipped when its time is over.
    ('task.revived', 'task.completed'), ('task.revived', 'task.failed'), ('task.started', 'task.skipped')
)
select happened.task_id, happened.last, happened.next
from happened
left join legal on legal.last = happened.last and legal.next = happened.next
where happened.last is not null and legal.next is null;

-- name: events_agree_with_state
-- The last recent event of a task tells its state and attempt.
with recent as materialized (
  select e.seq, e.kind, e.task_ids, e.attempts, row_number() over (order by e.xid desc, e.seq desc) as age
  from holdfast.event e
  order by e.xid desc, e.seq desc
  limit 20000
),
last as (
  select distinct on (g.task_id) g.task_id, g.attempt, recent.kind
  from recent
  cross join lateral unnest(recent.task_ids, recent.attempts) as g (task_id, attempt)
  where recent.age <= 19000 and recent.kind in (
    'task.reserved', 'task.launch_failed', 'task.started', 'task.completed', 'task.retrying', 'task.released',
    'task.failed', 'task.canceled',
    'task.revived'
  )
  order by g.task_id, recent.seq desc
),
current as (
  select t.task_id, t.attempt, case
      when t.state = 'r' then array['task.started']
      when t.state = 'v' then array['task.reserved']
      when t.state = 'w' then array['task.retrying', 'task.launch_failed']
      else array['task.retrying', 'task.released', 'task.revived', 'task.launch_failed']
    end as kinds
  from holdfast.live t
  union all
  select a.task_id, a.attempt, array['task.completed']
  from holdfast.attempt a
  left join (select n.run_id + 1 + n.node_no as task_id, n.generation from holdfast.node n) reset on reset.task_id = a.task_id
  where a.state = 'c' and a.generation >= coalesce(reset.generation, 1)
  union all
  select e.task_id, e.attempt, array[case e.state when 'f' then 'task.failed' else 'task.canceled' end]
  from holdfast.ended e
)
select last.task_id, last.kind, last.attempt as told, current.attempt
from last
join current on current.task_id = last.task_id
where last.kind <> all(current.kinds)
  -- A launch that failed was no attempt: what it tells is the number that is free again.
  or last.attempt - (last.kind = 'task.launch_failed')::int <> current.attempt;

-- name: a_reserved_attempt_has_a_launch
-- Every reserved task is being launched, or was, by a launch of that very attempt.
select t.task_id, t.attempt
from holdfast.live t
left join holdfast.launch h on h.task_id = t.task_id and h.attempt = t.attempt and h.state in ('p', 'l')
where t.state = 'v' and h.task_id is null;

-- name: a_running_attempt_spent_its_token
-- The launch of a running attempt keeps no token: it was used.
select t.task_id, t.attempt
from holdfast.live t
join holdfast.launch h on h.task_id = t.task_id and h.attempt = t.attempt
where t.state = 'r' and h.state in ('p', 'l');

-- name: a_failed_launch_is_due_again
-- A launch that failed and may be tried again fewer times than it did has no reservation, no slot, and a next try.
select h.task_id, h.attempt, h.failures
from holdfast.launch h
join holdfast.live t on t.task_id = h.task_id and t.attempt = h.attempt
where h.state = 'f' and t.state = 'v'
union all
select h.task_id, h.attempt, h.failures
from holdfast.launch h
where h.failures > 5 or (h.state = 'f' and h.failures = 0);

-- name: an_attempt_has_one_slot
-- No launch of a task holds two slots, and the slot of a launch is that of its launcher.
select s.launcher, s.slot, h.task_id
from holdfast.launch_slot s
join holdfast.launch h on h.holder = s.holder
where (s.task_id, s.attempt, s.launcher) is distinct from (h.task_id, h.attempt, h.launcher);

-- name: a_key_stands_for_a_task
-- An idempotency key points to a task or a run of its tenant that was asked for under that key.
select i.task_id, i.key
from holdfast.idempotency i
left join holdfast.body b on b.task_id = i.task_id and b.tenant_id = i.tenant_id and b.key = i.key
left join holdfast.run r on r.run_id = i.task_id and r.tenant_id = i.tenant_id and r.key = i.key
where b.task_id is null and r.run_id is null;

-- name: a_keyed_task_keeps_its_key
-- A task asked for under a key is what the key stands for, as long as the task is kept.
select b.task_id, b.key
from holdfast.body b
left join holdfast.idempotency i on i.tenant_id = b.tenant_id and i.key = b.key and i.task_id = b.task_id
where b.key is not null and i.task_id is null;

-- name: a_keyed_run_keeps_its_key
-- A run started under a key is what the key stands for, as long as the run is kept.
select r.run_id, r.key
from holdfast.run r
left join holdfast.idempotency i on i.tenant_id = r.tenant_id and i.key = r.key and i.task_id = r.run_id
where r.key is not null and i.task_id is null;

-- name: a_body_stays_with_its_tenant
-- Task, lane and policy belong to one tenant (T1).
select b.task_id
from holdfast.body b
left join holdfast.lane l on l.lane_id = b.lane_id
left join holdfast.policy p on p.policy_id = b.policy_id
where l.tenant_id is distinct from b.tenant_id or p.tenant_id is distinct from b.tenant_id;

-- name: a_live_task_stays_with_its_body
-- The live row says the same tenant, lane and policy as the task's body (T1).
select t.task_id
from holdfast.live t
join holdfast.body b on b.task_id = t.task_id
where (t.tenant_id, t.lane_id, t.policy_id) is distinct from (b.tenant_id, b.lane_id, b.policy_id);

-- name: an_ended_task_stays_with_its_body
-- The ended row says the same tenant, lane and policy as the task's body (T1).
select e.task_id
from holdfast.ended e
join holdfast.body b on b.task_id = e.task_id
where (e.tenant_id, e.lane_id, e.policy_id) is distinct from (b.tenant_id, b.lane_id, b.policy_id);

-- name: history_stays_with_its_tenant
-- Attempts and failures belong to the tenant of their task (T1).
select a.task_id
from holdfast.attempt a
join holdfast.body b on b.task_id = a.task_id
where a.tenant_id <> b.tenant_id
union all
select f.task_id
from holdfast.failure f
join holdfast.body b on b.task_id = f.task_id
where f.tenant_id <> b.tenant_id;

-- name: an_effect_has_one_key
-- What is asked for under one name and key, or as the n-th of its name in a task, has one idempotency key (E1).
select e.tenant_id, e.name, e.user_key, count(*) as keys
from holdfast.effect e
group by e.tenant_id, e.name, e.user_key, case when e.user_key is null then (e.task_id, e.ordinal) end
having count(*) > 1;

-- name: an_effect_was_sent_by_an_attempt
-- No receipt and no outbox entry without the attempt that had the lease for it (E2).
select e.task_id, e.key
from holdfast.effect e
left join holdfast.live t on t.task_id = e.task_id and t.lease_token = e.lease_token
left join holdfast.attempt a on a.task_id = e.task_id and a.lease_token = e.lease_token
left join holdfast.failure f on f.task_id = e.task_id and f.lease_token = e.lease_token
where coalesce(t.attempt, a.attempt, f.attempt) is distinct from e.attempt;

-- name: an_effect_stays_with_its_tenant
-- Effects and steps belong to the tenant of their task (T1).
select acted.task_id
from (
  select e.task_id, e.tenant_id
  from holdfast.effect e
  union all
  select s.task_id, s.tenant_id
  from holdfast.step s
) acted
join (
  select t.task_id, t.tenant_id
  from holdfast.live t
  union all
  select d.task_id, d.tenant_id
  from holdfast.ended d
  union all
  select a.task_id, a.tenant_id
  from holdfast.attempt a
) known on known.task_id = acted.task_id
where known.tenant_id <> acted.tenant_id;

-- name: an_effect_without_an_answer_is_shown_as_unknown
-- What an attempt that is over left without an answer is shown as unknown, never as pending or done (E3).
select e.task_id, e.key, v.state
from holdfast.effect e
join holdfast.tenant n on n.tenant_id = e.tenant_id
left join holdfast.effects v on v.idempotency_key = e.key and v.tenant = n.name
left join holdfast.live t on t.task_id = e.task_id and t.lease_token = e.lease_token and t.state = 'r'
where e.state in ('p', 'u') and t.task_id is null and v.state is distinct from 'unknown';

-- name: a_step_was_kept_by_an_attempt
-- No kept step without the attempt that kept it (E2).
select s.task_id, s.name
from holdfast.step s
left join holdfast.live t on t.task_id = s.task_id and t.attempt = s.attempt
left join holdfast.attempt a on a.task_id = s.task_id and a.attempt = s.attempt
left join holdfast.failure f on f.task_id = s.task_id and f.attempt = s.attempt
where coalesce(t.task_id, a.task_id, f.task_id) is null;

-- name: policies_say_what_they_contain
-- The columns of a policy repeat its content.
select p.policy_id
from holdfast.policy p
where coalesce((p.content ->> 'max_retries')::int, 3) <> p.max_retries
  or coalesce((p.content ->> 'max_losses')::int, 3) <> p.max_losses
  or (p.content ->> 'timeout_seconds')::double precision is distinct from p.timeout_seconds;

-- name: every_block_has_its_partitions
-- A block of ids is one partition of body, one of attempt and one of node.
select b.block
from holdfast.block b
where to_regclass(format('holdfast.body_%s', b.block)) is null
  or to_regclass(format('holdfast.attempt_%s', b.block)) is null
  or to_regclass(format('holdfast.node_%s', b.block)) is null;

-- name: the_next_id_has_a_block
-- The next task id falls into a block, so that it can be stored.
select s.last_value
from holdfast.task_id s
left join holdfast.block b on s.last_value + s.is_called::int between b.first_id and b.last_id
where b.block is null;

-- name: the_clock_is_the_databases_own
-- Time comes from the database's clock, not from a test kit's.
select p.oid::regprocedure::text as function, pg_get_function_sqlbody(p.oid) as body
from pg_proc p
where p.oid = 'holdfast.instant()'::regprocedure
  and (pg_get_function_sqlbody(p.oid) is distinct from 'RETURN statement_timestamp()' or p.provolatile <> 's');

-- name: every_index_is_valid
-- No index was left behind half-built.
select i.indexrelid::regclass::text as index
from pg_index i
join pg_class c on c.oid = i.indrelid
where c.relnamespace = 'holdfast'::regnamespace and not (i.indisvalid and i.indisready);

-- name: every_constraint_is_checked
-- No constraint is declared without having been checked, and what keeps the rows of the hot table sound is there.
select c.conname
from pg_constraint c
where c.connamespace = 'holdfast'::regnamespace and not c.convalidated
union all
select 'live_sound'
where to_regclass('holdfast.live_sound') is null;

-- name: expired_leases_are_reaped
-- Warning: a lease expired more than a minute ago and nobody reaped it. Does any worker or server run?
select t.task_id
from holdfast.live t
where t.state in ('r', 'v') and t.lease_expires_at < holdfast.instant() - interval '1 minute';

-- name: dead_workers_hold_nothing
-- Warning: a worker left more than a minute ago and its attempts were not reaped.
select t.task_id
from holdfast.live t
join holdfast.worker w on w.worker_id = t.worker_id
where t.state = 'r' and w.state = 'gone' and w.ended_at < holdfast.instant() - interval '1 minute';

-- name: due_tasks_are_promoted
-- Warning: a task has been due for more than a minute and nobody made it claimable.
select t.task_id
from holdfast.live t
where t.state = 'w' and t.due_at < holdfast.instant() - interval '1 minute';

-- name: ended_children_are_answered
-- Warning: a run ended more than a minute ago and the node that waits for it was not told. The log of the loops says
-- what is in the way.
select c.run_id, c.parent_run_id
from holdfast.run c
where c.parent_run_id is not null and c.state <> 'o' and not c.is_answered
  and c.ended_at < holdfast.instant() - interval '1 minute';

-- name: waits_end_at_their_deadline
-- Warning: the time of a waiting node was over more than a minute ago and it still waits. The log of the loops says
-- what is in the way.
select n.run_id, n.node_no
from holdfast.node n
where n.state = 'w' and n.deadline < holdfast.instant() - interval '1 minute';

-- name: limits_hold
-- Warning: more tasks of a queue run than its limit allows (B3). Right after lowering the limit this is no fault.
select q.queue_id, q.name
from holdfast.queue q
join holdfast.lane l on l.queue_id = q.queue_id
join holdfast.live t on t.lane_id = l.lane_id and t.state in ('r', 'v')
where q.max_running is not null
group by q.queue_id, q.name, q.max_running
having count(*) > q.max_running;

-- name: half_open_breakers_keep_to_their_trials
-- No half-open breaker has more trials running and passed than it grants.
select b.breaker_id, b.action
from holdfast.breaker b
join holdfast.lane l on l.tenant_id = b.tenant_id and l.action = b.action
join holdfast.live t on t.lane_id = l.lane_id and t.state in ('r', 'v') and t.started_at >= b.since
where b.state = 'h'
group by b.breaker_id, b.action, b.trials, b.passed
having count(*) + least(b.passed, b.trials - 1) > b.trials;

-- name: quotas_hold
-- No window holds more retries than its quota allows.
select k.quota_id, k.action, k.queue_id
from holdfast.quota k
join holdfast.tally t on t.guard_id = k.quota_id
where k.retries_max is not null and t.slice between holdfast.slice_now(k.window_seconds) - 12 and holdfast.slice_now(k.window_seconds)
group by k.quota_id, k.action, k.queue_id, k.retries_max
having sum(t.part) > k.retries_max;

-- name: attempts_follow_one_another
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

-- name: runs_count_their_nodes
-- The counters of a run are those of its nodes: not over, active, failed.
with recent as materialized (
  select run_id, pending, active, failed
  from holdfast.run
  where state <> 'c'
  union all
  (select run_id, pending, active, failed from holdfast.run where state = 'c' order by run_id desc limit 1000)
),
counted as (
  select n.run_id,
    count(*) filter (where n.state in ('blocked', 'queued', 'running', 'retrying')) as pending,
    count(*) filter (where n.state in ('queued', 'running', 'retrying')) as active,
    count(*) filter (where n.state = 'failed') as failed
  from recent
  join holdfast.standing n on n.run_id = recent.run_id
  group by n.run_id
)
select recent.run_id, recent.pending, counted.pending as pending_now, recent.active, counted.active as active_now,
  recent.failed, counted.failed as failed_now
from recent
join counted on counted.run_id = recent.run_id
where (recent.pending, recent.active, recent.failed) is distinct from (counted.pending, counted.active, counted.failed);

-- name: a_blocked_node_waits_for_somebody
-- In a run that goes on, a node is blocked only while one of its upstreams is not over, or the run holds it back because
-- it is paused or full.
with open as materialized (
  select r.run_id, s.flow_id, r.paused_at is not null or coalesce(r.active >= r.max_active, false) as holds_back
  from holdfast.run r
  join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
  where r.state = 'o' and r.canceled_at is null
),
edge as (
  select f.flow_id, e.upstream, e.downstream
  from holdfast.flow f
  cross join lateral unnest(f.upstreams, f.downstreams) as e (upstream, downstream)
),
stands as materialized (
  select n.run_id, open.flow_id, open.holds_back, n.node_no, n.state, n.letter
  from open
  join holdfast.standing n on n.run_id = open.run_id
),
awaited as (
  select down.run_id, down.node_no
  from stands down
  join edge on edge.flow_id = down.flow_id and edge.downstream = down.node_no
  join stands up on up.run_id = down.run_id and up.node_no = edge.upstream
  where up.state in ('blocked', 'queued', 'running', 'retrying')
)
select stands.run_id, stands.node_no
from stands
left join awaited on awaited.run_id = stands.run_id and awaited.node_no = stands.node_no
where stands.state = 'blocked' and case when stands.letter = 'h' then not stands.holds_back else awaited.run_id is null end;

-- name: nodes_count_their_upstreams
-- The counters of a blocked node are those of its upstreams, by how they ended.
with blocked as materialized (
  select n.run_id, n.node_no, n.pending, n.succeeded, n.skipped, n.failed, s.flow_id
  from holdfast.node n
  join holdfast.run r on r.run_id = n.run_id and r.state = 'o' and r.canceled_at is null
  join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
  where n.state = 'b'
),
edge as (
  select f.flow_id, e.upstream, e.downstream
  from holdfast.flow f
  cross join lateral unnest(f.upstreams, f.downstreams) as e (upstream, downstream)
),
counted as (
  select blocked.run_id, blocked.node_no,
    count(*) filter (where up.state in ('blocked', 'queued', 'running', 'retrying')) as pending,
    count(*) filter (where up.state = 'completed') as succeeded,
    count(*) filter (where up.state = 'skipped') as skipped,
    count(*) filter (where up.state in ('failed', 'upstream_failed', 'canceled')) as failed
  from blocked
  join edge on edge.flow_id = blocked.flow_id and edge.downstream = blocked.node_no
  join holdfast.standing up on up.run_id = blocked.run_id and up.node_no = edge.upstream
  group by blocked.run_id, blocked.node_no
)
select blocked.run_id, blocked.node_no, blocked.pending, counted.pending as pending_now
from blocked
join counted on counted.run_id = blocked.run_id and counted.node_no = blocked.node_no
where (blocked.pending, blocked.succeeded, blocked.skipped, blocked.failed)
  is distinct from (counted.pending, counted.succeeded, counted.skipped, counted.failed);

-- name: a_live_node_belongs_to_an_open_run
-- A task of a run is one of its nodes or items, in the generation of that node, and its run is open.
select t.task_id
from holdfast.live t
left join holdfast.run r on r.run_id = t.run_id
left join holdfast.node n on n.run_id = t.run_id and n.node_no = t.node_no
where t.run_id is not null and not (
  coalesce(r.state = 'o', false) and t.node_no < r.nodes and t.tenant_id = r.tenant_id
  and t.generation = coalesce(n.generation, 1)
  and (t.task_id = t.run_id + 1 + t.node_no
    or coalesce(n.state = 'm' and t.task_id between n.items_first and n.items_first + n.items - 1, false))
);

-- name: items_are_counted_right
-- A node that maps has as many items left as are queued, running or not released yet.
with mapping as (
  select n.run_id, n.node_no, n.items_pending, n.items, n.items_first, n.items_next, n.items_after
  from holdfast.node n
  where n.state = 'm'
),
live as (
  select t.run_id, t.node_no, count(*) as items
  from holdfast.live t
  where t.run_id is not null
  group by t.run_id, t.node_no
),
-- Of a node that was re-driven, items that completed before are not released again.
again as (
  select m.run_id, m.node_no, count(*) as items
  from mapping m
  cross join lateral generate_series(m.items_after, m.items - 1) as i
  left join holdfast.attempt a on a.task_id = m.items_first + i and a.state = 'c'
  where a.task_id is null
  group by m.run_id, m.node_no
)
select m.run_id, m.node_no, m.items_pending, coalesce(live.items, 0) as live
from mapping m
left join live on live.run_id = m.run_id and live.node_no = m.node_no
left join again on again.run_id = m.run_id and again.node_no = m.node_no
where m.items_pending <> coalesce(live.items, 0)
  + case when m.items_after is null then m.items - m.items_next else coalesce(again.items, 0) end;

-- name: a_node_that_maps_has_items_under_way
-- Unless its run is paused or canceled, some item of a node that maps is live: the last one to end lets others go, or ends
-- the node.
select n.run_id, n.node_no
from holdfast.node n
join holdfast.run r on r.run_id = n.run_id
where n.state = 'm' and r.paused_at is null and r.canceled_at is null
  and not exists (select from holdfast.live t where t.task_id between n.items_first and n.items_first + n.items - 1);

-- name: a_node_that_runs_a_flow_has_its_run
-- A node that waits for a run of another flow will be answered.
select n.run_id, n.node_no
from holdfast.node n
left join holdfast.run c on c.run_id = n.child_run_id and c.parent_run_id = n.run_id and c.parent_node = n.node_no
where n.state = 's' and (c.run_id is null or (c.state <> 'o' and c.is_answered and not c.is_wanted));

-- name: runs_stay_with_their_tenant
-- Runs, their nodes and the runs they start belong to one tenant (T1).
select n.run_id
from holdfast.node n
join holdfast.run r on r.run_id = n.run_id
where n.tenant_id <> r.tenant_id
union all
select c.run_id
from holdfast.run c
join holdfast.run r on r.run_id = c.parent_run_id
where c.tenant_id <> r.tenant_id;

-- name: the_next_span_has_a_block
-- The next ids of a run fall into a block, so that its nodes can be stored.
select s.last_value
from holdfast.span s
where not exists (select from holdfast.block b where s.last_value between b.first_id and b.last_id);

-- name: a_failed_task_has_a_dead_letter
-- A task that failed for good and says that it has a letter has one of its generation.
select e.task_id
from holdfast.ended e
left join holdfast.dead_letter d on d.task_id = e.task_id and d.generation = e.generation and d.attempts = e.attempt
where e.state = 'f' and e.has_letter and d.dead_letter_id is null;

-- name: an_open_letter_stands_for_a_dead_task
-- Whatever is open has a task that failed for good and rests so, in the generation that the letter is of, unless another
-- letter of the task or its run was dispatched since (X1); or a node that failed without one.
with task_dispatched as (
  select d.task_id, max(d.dispatched_at) as last_at
  from holdfast.dead_letter d
  group by d.task_id
),
run_dispatched as (
  select d.run_id, max(d.dispatched_at) as last_at
  from holdfast.dead_letter d
  group by d.run_id
)
select d.dead_letter_id
from holdfast.dead_letter d
left join holdfast.ended e on e.task_id = d.task_id and e.state = 'f' and e.generation = d.generation
left join task_dispatched t on t.task_id = d.task_id and t.last_at >= d.opened_at
left join run_dispatched r on r.run_id = d.run_id and r.last_at >= d.opened_at
left join holdfast.node n on n.run_id = d.run_id and n.node_no = d.node_no and n.state = 'f'
  and n.generation = d.generation and d.task_id = d.run_id + 1 + d.node_no
where d.state = 'open' and e.task_id is null and t.task_id is null and r.run_id is null and n.run_id is null;

-- name: a_letter_stands_for_a_failure
-- Whatever is unresolved has the failure that opened it.
select d.dead_letter_id
from holdfast.dead_letter d
left join holdfast.failure f on f.task_id = d.task_id and f.attempt = d.attempts and f.decision = 'stop'
where d.state <> 'resolved' and f.task_id is null;

-- name: a_success_leaves_no_letter_open
-- A task that completed after a letter was opened has resolved it.
select d.dead_letter_id
from holdfast.dead_letter d
join holdfast.attempt a on a.task_id = d.task_id and a.state = 'c' and a.generation > d.generation
where d.state <> 'resolved';

-- name: a_letter_follows_an_older_one
-- The letter before a letter is an older one of the same task.
select d.dead_letter_id
from holdfast.dead_letter d
join holdfast.dead_letter p on p.dead_letter_id = d.previous_id
where p.task_id <> d.task_id or p.dead_letter_id >= d.dead_letter_id;

-- name: a_letter_at_rest_is_looked_at
-- A letter whose task failed again waits for the sweep, or belongs to a campaign that counts it.
select d.dead_letter_id
from holdfast.dead_letter d
join holdfast.ended e on e.task_id = d.task_id and e.state = 'f' and e.generation > d.generation
where d.state = 'retrying' and not d.wants_sweep and e.has_letter;

-- name: a_letter_stays_with_its_tenant
-- Letter and failure belong to one tenant (T1).
select d.dead_letter_id
from holdfast.dead_letter d
join holdfast.failure f on f.task_id = d.task_id and f.attempt = d.attempts
where f.tenant_id <> d.tenant_id;

-- name: asked_letters_are_dispatched
-- Warning: a letter was asked to be retried more than ten minutes ago and its task still rests, failed or canceled. Does
-- any server run?
select d.dead_letter_id
from holdfast.dead_letter d
join holdfast.ended e on e.task_id = d.task_id and e.state in ('f', 'x')
where (d.wants_sweep or (e.state = 'x' and d.state = 'retrying')) and d.changed_at < holdfast.instant() - interval '10 minutes'
  and e.ended_at < holdfast.instant() - interval '10 minutes';

-- name: campaigns_count_their_letters
-- A campaign counts exactly the letters it released, and what became of them.
select c.campaign_id
from holdfast.campaign c
left join (
  select m.campaign_id, count(*) as released, count(*) filter (where m.outcome = 'succeeded') as succeeded,
    count(*) filter (where m.outcome = 'returned') as returned, count(*) filter (where m.outcome = 'failed') as failed,
    count(*) filter (where m.outcome = 'canceled') as canceled, count(*) filter (where m.outcome = 'dropped') as dropped
  from holdfast.campaign_letter m
  group by m.campaign_id
) m on m.campaign_id = c.campaign_id
where (c.released, c.succeeded, c.returned, c.failed, c.canceled, c.dropped) is distinct from (
  coalesce(m.released, 0), coalesce(m.succeeded, 0), coalesce(m.returned, 0), coalesce(m.failed, 0),
  coalesce(m.canceled, 0), coalesce(m.dropped, 0)
);

-- name: a_campaign_knows_its_letters
-- A letter that a campaign sent out is on that campaign's list.
select d.dead_letter_id
from holdfast.dead_letter d
left join holdfast.campaign_letter m on m.campaign_id = d.campaign_id and m.dead_letter_id = d.dead_letter_id
where d.campaign_id is not null and m.dead_letter_id is null;

-- name: a_fired_slot_has_its_task_or_run
-- What a slot fired is there, as long as history of that time is kept.
select f.schedule_id, f.slot_at
from holdfast.slot f
join holdfast.block b on coalesce(f.task_id, f.run_id) between b.first_id and b.last_id
left join holdfast.body d on d.task_id = f.task_id
left join holdfast.run r on r.run_id = f.run_id
where f.state = 'f' and d.task_id is null and r.run_id is null;

-- name: no_slot_fires_twice
-- A task or run belongs to one slot. That a slot has one is its primary key.
select coalesce(f.task_id, f.run_id) as id
from holdfast.slot f
where f.state = 'f'
group by 1
having count(*) > 1;

-- name: slots_stay_with_their_tenant
-- A schedule, its slots and what they fired belong to one tenant (T1).
select f.schedule_id, f.slot_at
from holdfast.slot f
left join holdfast.body d on d.task_id = f.task_id
left join holdfast.run r on r.run_id = f.run_id
where f.tenant_id <> coalesce(d.tenant_id, r.tenant_id);

-- name: due_schedules_fire
-- Warning: a schedule has been due for more than a minute and nobody looked at it. Does any worker or server run?
select s.schedule_id, s.name
from holdfast.schedule s
where s.look_at < holdfast.instant() - interval '1 minute';

-- name: audit_rows_are_what_was_written
-- The hash of every audited change is that of its fields and of the hash before it.
select a.tenant_id, a.seq
from holdfast.audit a
where a.hash <> sha256(convert_to((
  select string_agg(octet_length(convert_to(u.field, 'UTF8')) || ':' || u.field || ',', '' order by u.n)
  from unnest(array[
    a.tenant_id::text, a.seq::text, (extract(epoch from a.at) * 1000000)::bigint::text, a.actor, a.verb, a.subject_kind,
    a.subject_id, a.reason, a.before::text, a.after::text, encode(a.prev_hash, 'hex')
  ]) with ordinality as u (field, n)
), 'UTF8'));

-- name: audit_rows_follow_one_another
-- Every audited change follows the one before it, from the first on, and none is missing between them.
select c.tenant_id, c.seq
from (
  select a.tenant_id, a.seq, a.prev_hash, lag(a.seq, 1, 0::bigint) over chain as last_seq,
    lag(a.hash, 1, decode(repeat('00', 32), 'hex')) over chain as last_hash
  from holdfast.audit a
  window chain as (partition by a.tenant_id order by a.seq)
) c
where c.seq <> c.last_seq + 1 or c.prev_hash <> c.last_hash;

-- name: audit_heads_name_the_last_row
-- The end of every audit chain is the row that its head names.
select coalesce(h.tenant_id, a.tenant_id) as tenant_id, h.seq as head, a.seq as last
from holdfast.audit_head h
full join (
  select distinct on (tenant_id) tenant_id, seq, hash
  from holdfast.audit
  order by tenant_id, seq desc
) a on a.tenant_id = h.tenant_id
where (coalesce(h.seq, 0), h.hash) is distinct from (coalesce(a.seq, 0), coalesce(a.hash, decode(repeat('00', 32), 'hex')));

-- name: the_audit_log_is_append_only
-- The triggers that refuse changes of the audit log are there and always on.
select g.name
from (values ('holdfast.audit', 'append_only'), ('holdfast.audit_head', 'append_only'), ('holdfast.audit_head', 'only_forward'))
  as g (relation, name)
left join pg_trigger t on t.tgrelid = to_regclass(g.relation) and t.tgname = g.name and t.tgenabled = 'A'
where t.oid is null;

-- name: a_dataset_shows_its_current_generation
-- The version a dataset names is the one generation of it that is current.
select d.dataset_id, d.name, d.current_version
from holdfast.dataset d
left join holdfast.dataset_generation g on g.dataset_id = d.dataset_id and g.state = 'c'
where g.version is distinct from d.current_version;

-- name: every_generation_has_its_tables
-- A generation has its table of rows and its stage until it is dropped, and nothing afterwards.
select g.generation_id, d.name, g.version
from holdfast.dataset_generation g
join holdfast.dataset d on d.dataset_id = g.dataset_id
cross join holdfast.generation_names(g.generation_id) as n
where (g.state <> 'd') <> (to_regclass(n.rows_table) is not null)
  or (g.state <> 'd') <> (to_regclass(n.stage_table) is not null);

-- name: readers_see_the_current_generation
-- The view of a dataset is there, and reads the table of its current generation.
select d.name, d.current_version
from holdfast.dataset d
join holdfast.dataset_generation g on g.dataset_id = d.dataset_id and g.version = d.current_version
cross join holdfast.generation_names(g.generation_id) as n
where not exists (
  select
  from pg_rewrite r
  join pg_depend p on p.classid = 'pg_rewrite'::regclass and p.objid = r.oid and p.refclassid = 'pg_class'::regclass
  where r.ev_class = to_regclass(format('%I.%I', d.place, d.name)) and p.refobjid = to_regclass(n.rows_table)
);

-- name: rows_of_datasets_are_counted
-- A generation holds as many rows as its commits say: none is missing and none came twice.
select g.generation_id, d.name, g.version, g.rows, holdfast.count_rows(g.generation_id, null) as found
from holdfast.dataset_generation g
join holdfast.dataset d on d.dataset_id = g.dataset_id
where g.state <> 'd' and holdfast.count_rows(g.generation_id, null) is distinct from g.rows;

-- name: a_commit_belongs_to_a_completed_attempt
-- Rows were committed only with an accepted completion, while its history is kept.
select c.task_id, c.attempt
from holdfast.dataset_commit c
join holdfast.block b on c.task_id between b.first_id and b.last_id
left join holdfast.attempt a on a.task_id = c.task_id and a.attempt = c.attempt and a.state = 'c'
where a.task_id is null;

-- name: staged_rows_are_swept
-- Warning: an attempt staged rows more than ten minutes ago and is over, and nobody swept them. Does any server run?
select s.task_id, s.attempt
from holdfast.dataset_stage s
left join holdfast.live t on t.task_id = s.task_id and t.attempt = s.attempt and t.state = 'r'
where t.task_id is null and s.staged_at < holdfast.instant() - interval '10 minutes';

-- name: owed_rows_are_taken_back
-- Warning: a run completed again more than ten minutes ago, and rows it had appended before are still there. Does any
-- server run?
select o.task_id, o.generation_id
from holdfast.dataset_owed o
join holdfast.run r on r.run_id = o.run_id
join holdfast.dataset_generation g on g.generation_id = o.generation_id
where r.state = 'c' and r.ended_at < holdfast.instant() - interval '10 minutes' and g.state in ('b', 'c');

-- name: the_installation_has_its_secrets
-- The secret that capability tokens are signed with is there, and long enough.
select w.purpose
from (values ('capability')) as w (purpose)
left join holdfast.secret s on s.purpose = w.purpose and octet_length(s.value) >= 32
where s.purpose is null;

-- name: tenant_limits_hold
-- Warning: more tasks of a tenant run than its limit allows (B3). Right after lowering the limit this is no fault.
select n.tenant_id, n.max_running, count(*) as running
from holdfast.tenant n
join holdfast.live t on t.tenant_id = n.tenant_id and t.state in ('r', 'v')
where n.max_running is not null
group by n.tenant_id, n.max_running
having count(*) > n.max_running;

-- name: workers_stay_with_their_tenant
-- A running attempt is held by a worker of its own tenant (T1).
select t.task_id, t.worker_id
from holdfast.live t
join holdfast.worker w on w.worker_id = t.worker_id
where w.tenant_id <> t.tenant_id;

-- name: notes_stay_with_their_tenant
-- What an attempt said belongs to the tenant of its task (T1).
select n.task_id, n.attempt
from holdfast.note n
join holdfast.body b on b.task_id = n.task_id
where n.tenant_id <> b.tenant_id;

-- name: snapshots_stay_with_their_tenant
-- The lanes and policies of a snapshot, and the snapshots it starts, belong to its tenant (T1).
select s.snapshot_id
from holdfast.snapshot s
cross join lateral unnest(s.lane_ids, s.policy_ids, s.child_ids) as named (lane_id, policy_id, child_id)
left join holdfast.lane l on l.lane_id = named.lane_id
left join holdfast.policy p on p.policy_id = named.policy_id
left join holdfast.snapshot c on c.snapshot_id = named.child_id
where (l.lane_id is not null and l.tenant_id <> s.tenant_id)
  or (p.policy_id is not null and p.tenant_id <> s.tenant_id)
  or (c.snapshot_id is not null and c.tenant_id <> s.tenant_id);

-- name: datasets_stay_with_their_tenant
-- What is staged for, committed to and building a generation belongs to its tenant (T1).
select s.task_id, s.generation_id
from holdfast.dataset_stage s
join holdfast.dataset_generation g on g.generation_id = s.generation_id
where g.tenant_id <> s.tenant_id
union all
select c.task_id, c.generation_id
from holdfast.dataset_commit c
join holdfast.dataset_generation g on g.generation_id = c.generation_id
where g.tenant_id <> c.tenant_id
union all
select b.task_id, b.generation_id
from holdfast.dataset_build b
join holdfast.dataset_generation g on g.generation_id = b.generation_id
join holdfast.body t on t.task_id = b.task_id
where g.tenant_id <> t.tenant_id;

-- name: campaigns_stay_with_their_tenant
-- The letters of a campaign belong to its tenant (T1).
select d.dead_letter_id, c.campaign_id
from holdfast.dead_letter d
join holdfast.campaign c on c.campaign_id = d.campaign_id
where c.tenant_id <> d.tenant_id
union all
select l.dead_letter_id, l.campaign_id
from holdfast.campaign_letter l
join holdfast.campaign c on c.campaign_id = l.campaign_id
join holdfast.dead_letter d on d.dead_letter_id = l.dead_letter_id
where c.tenant_id <> d.tenant_id;

-- name: every_table_has_its_wall
-- Row-level security is forced on every table, with a policy for the engine, and one for the tenant where rows have one;
-- partitions are reached by no other way (T2).
select c.relname::text as name
from pg_class c
where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
  and not (
    c.relrowsecurity and c.relforcerowsecurity
    and exists (select from pg_policy p where p.polrelid = c.oid and p.polname = 'engine')
    and (
      exists (select from pg_policy p where p.polrelid = c.oid and p.polname = 'tenant')
      or not exists (
        select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped
      )
      or not exists (select from pg_roles r where r.rolname = 'holdfast_tenant')
    )
  )
union all
select c.relname::text
from pg_class c
join pg_roles r on r.rolname = 'holdfast_tenant'
where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'r' and c.relispartition
  and has_table_privilege(r.oid, c.oid, 'select, insert, update, delete, truncate');

-- name: walls_have_no_doors
-- The role of tenants is no superuser, passes no policy, owns nothing here and may not sign in; it rewrites no audit log
-- and no event; views look with the rights of whoever asks (T2).
select r.rolname::text as name
from pg_roles r
where r.rolname = 'holdfast_tenant' and (r.rolsuper or r.rolbypassrls or r.rolcanlogin or r.rolcreaterole or r.rolcreatedb)
union all
select c.relname::text
from pg_class c
join pg_roles r on r.rolname = 'holdfast_tenant'
where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p', 'v', 'S')
  and (
    pg_has_role(r.oid, c.relowner, 'member')
    or (c.relname in ('audit', 'event') and has_table_privilege(r.oid, c.oid, 'update, delete, truncate'))
    or (c.relkind in ('r', 'p', 'v') and has_table_privilege(r.oid, c.oid, 'truncate, trigger, references'))
    or (c.relkind = 'S' and has_sequence_privilege(r.oid, c.oid, 'update'))
  )
union all
select c.relname::text
from pg_class c
where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'v'
  and not ('security_invoker=true' = any(coalesce(c.reloptions, '{}')));

-- name: completed_tasks_are_counted
-- What was counted of completed tasks, with what events tell since, is what there is, lane by lane.
select lane_id, sum(counted) as counted, sum(there) as there
from (
  select c.lane_id, c.tasks as counted, 0 as there
  from holdfast.completed c
  union all
  select s.lane_id, s.tasks, 0
  from holdfast.completed_since((select c.seen from holdfast.counted c), null, null) s
  union all
  select b.lane_id, 0, b.tasks
  from holdfast.completed_between(0, 9223372036854775807) b
  where b.lane_id > 0
) c
group by lane_id
having sum(counted) <> sum(there);
