-- name: lock_tasks(task_ids) -> nothing
-- Lock a mixed batch by id before its two settling statements do. A heartbeat locks the same rows in that order, so the
-- two cannot deadlock.
select t.task_id
from holdfast.live t
where t.task_id = any(@task_ids::bigint[])
order by t.task_id
for update of t;

-- name: settle_completed(task_ids, attempts, lease_tokens, outputs, with_events) -> row
-- nullable: awaited, redriven, node_tasks, node_runs, node_numbers, runs
-- Accept results: delete the live row and record the attempt. Attempt and token are the fence: a worker that lost its
-- lease matches no row. Returns how many were accepted and which of them are awaited. If requested (@with_events), it also locks
-- and returns the runs of nodes among them, as `lock_runs` does, which saves a chain one round trip per node. A batch
-- with a re-driven task locks no run here: its dead letters have to be locked first, and the caller locks the runs
-- after them. `deleted` and `fenced` hold the same rows; the full join forces a hash join even when the planner
-- believes the table is empty.
with given as materialized (
  select *
  from unnest(@task_ids::bigint[], @attempts::int[], @lease_tokens::uuid[], @outputs::bytea[]) as g (task_id, attempt, lease_token, output)
),
locked as materialized (
  select t.task_id, t.attempt, t.lease_token, t.state
  from holdfast.live t
  where t.task_id = any(@task_ids::bigint[])
  order by t.task_id
  for update of t
),
fenced as materialized (
  select locked.task_id, given.output
  from locked
  join given on given.task_id = locked.task_id and given.attempt = locked.attempt and given.lease_token = locked.lease_token
  where locked.state = 'r'
),
deleted as (
  delete from holdfast.live t
  where t.task_id = any(array(select task_id from fenced))
  returning t.*
),
recorded as (
  insert into holdfast.attempt (
    task_id, started_at, ended_at, attempt, tenant_id, worker_id, generation, state, lease_token, output
  )
  select deleted.task_id, deleted.started_at, holdfast.instant(), deleted.attempt, deleted.tenant_id, deleted.worker_id,
    deleted.generation, 'c', deleted.lease_token, fenced.output
  from deleted
  full join fenced on fenced.task_id = deleted.task_id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select tenant_id, 'task.completed', array_agg(task_id), array_agg(attempt)
  from deleted
  group by tenant_id
),
locked_runs as materialized (
  select r.run_id, r.snapshot_id, r.tenant_id, r.generation, r.pending, r.active, r.failed, r.nodes, r.max_active,
    r.priority, r.paused_at is not null as is_paused, r.canceled_at is not null as is_canceled
  from holdfast.run r
  where @with_events and not exists (select from deleted where deleted.generation > 1)
    and r.run_id = any(array(select distinct deleted.run_id from deleted where deleted.run_id is not null)) and r.state = 'o'
  order by r.run_id
  for no key update of r
)
select count(*) as accepted, array_agg(task_id) filter (where is_awaited) as awaited,
  array_agg(task_id) filter (where generation > 1) as redriven,
  array_agg(task_id) filter (where run_id is not null) as node_tasks,
  array_agg(run_id) filter (where run_id is not null) as node_runs,
  array_agg(node_no) filter (where run_id is not null) as node_numbers,
  (
    select array_agg(array[
      r.run_id, r.snapshot_id, r.tenant_id, r.generation, r.pending, r.active, r.failed, r.nodes, r.max_active, r.priority,
      r.is_paused::int, r.is_canceled::int
    ])
    from locked_runs r
  ) as runs
from deleted;

-- name: settle_incomplete(task_ids, attempts, lease_tokens, outcomes, nexts, delay_seconds, codes, types, messages,
--   tracebacks, reasons, rules, sentences, fingerprints[?], causes[?], inputs[?], effects[?], classes[?]) -> row
-- nullable: awaited, failed_again, failed_again_runs, node_tasks, node_runs, node_numbers, node_states, lanes
-- Move attempts that did not complete (f failed, t timed out, l lost, x canceled, e released) to the decided state: q
-- queued, w waiting, f failed for good with a dead letter, x canceled. The fence is the same. A requested cancellation
-- wins over any retry. A retry without delay waits too if a quota counts it: the quota counts it when it is promoted.
with given as materialized (
  select *
  from unnest(
    @task_ids::bigint[], @attempts::int[], @lease_tokens::uuid[], @outcomes::text[], @nexts::text[], @delay_seconds::double precision[], @codes::text[], @types::text[],
    @messages::text[], @tracebacks::text[], @reasons::text[], @rules::text[], @sentences::text[], @fingerprints::text[], @causes::text[], @inputs::bytea[], @effects::text[],
    @classes::text[]
  ) as g (
    task_id, attempt, lease_token, outcome, next, delay_seconds, code, type, message, traceback, reason, rule, sentence,
    fingerprint, cause, input, effect, class
  )
),
locked as materialized (
  select t.task_id, t.attempt, t.lease_token, t.state, t.cancel_at, t.tenant_id, t.worker_id, t.started_at, t.lane_id,
    t.generation
  from holdfast.live t
  where t.task_id = any(@task_ids::bigint[])
  order by t.task_id
  for update of t
),
fenced as materialized (
  select given.*, locked.tenant_id, locked.worker_id, locked.started_at, locked.lane_id, locked.generation,
    case when locked.cancel_at is not null then 'x' else given.next end as next_state
  from locked
  join given on given.task_id = locked.task_id and given.attempt = locked.attempt and given.lease_token = locked.lease_token
  where locked.state in ('r', 'v')
),
waiting as materialized (
  select fenced.task_id
  from fenced
  where fenced.next_state = 'w' or (fenced.next_state = 'q' and fenced.outcome <> 'e' and exists (
    select from holdfast.lane l
    join holdfast.quota k on holdfast.quota_covers(k, l)
    where l.lane_id = fenced.lane_id
  ))
),
moved as (
  update holdfast.live t
  set state = (case when t.task_id in (table waiting) then 'w' else 'q' end)::"char",
    due_at = case when t.task_id in (table waiting)
      then holdfast.instant() + make_interval(secs => (@delay_seconds::double precision[])[array_position(@task_ids::bigint[], t.task_id)]) end,
    is_retrying = t.task_id in (table waiting),
    retries = t.retries + ((@outcomes::text[])[array_position(@task_ids::bigint[], t.task_id)] in ('f', 't'))::int,
    losses = t.losses + ((@outcomes::text[])[array_position(@task_ids::bigint[], t.task_id)] = 'l')::int,
    worker_id = null, lease_token = null, lease_expires_at = null, started_at = null
  where t.task_id = any(array(select task_id from fenced where next_state in ('q', 'w')))
  returning t.task_id, t.lane_id, t.state
),
deleted as (
  delete from holdfast.live t
  where t.task_id = any(array(select task_id from fenced where next_state in ('f', 'x')))
  returning t.*
),
ended_tasks as (
  insert into holdfast.ended (
    task_id, tenant_id, lane_id, policy_id, attempt, priority, max_retries, max_losses, retries, losses, generation,
    state, created_at, ended_at, reason, actor, input, tags, key, run_id, node_no, has_letter
  )
  select deleted.task_id, deleted.tenant_id, deleted.lane_id, deleted.policy_id, deleted.attempt, deleted.priority, deleted.max_retries,
    deleted.max_losses, deleted.retries, deleted.losses, deleted.generation, fenced.next_state::"char",
    coalesce(b.created_at, fenced.started_at), holdfast.instant(), case when fenced.next_state = 'x' then coalesce(deleted.cancel_reason, '') else fenced.reason end,
    coalesce(deleted.cancel_actor, ''), b.input, b.tags, b.key, deleted.run_id, deleted.node_no,
    case when fenced.next_state = 'f' then fenced.fingerprint is not null end
  from deleted
  full join (select * from fenced where next_state in ('f', 'x')) fenced on fenced.task_id = deleted.task_id
  left join lateral (select * from holdfast.body b where b.task_id = deleted.task_id limit 1) b on true
),
letters as (
  insert into holdfast.dead_letter (
    tenant_id, task_id, run_id, node_no, lane_id, attempts, generation, source_type, source_id, fingerprint, cause,
    reason, previous_id, input, recovery_options
  )
  select deleted.tenant_id, deleted.task_id, deleted.run_id, deleted.node_no, deleted.lane_id, deleted.attempt, deleted.generation,
    case when sent.key is null then 'task' else 'tool_effect' end, coalesce(sent.key, deleted.task_id::text),
    fenced.fingerprint, fenced.cause, fenced.reason,
    case when deleted.attempt > 1 then (
      select max(d.dead_letter_id)
      from holdfast.dead_letter d
      where d.task_id = deleted.task_id
    ) end,
    fenced.input, holdfast.recovery_options(deleted.task_id)
  from deleted
  join fenced on fenced.task_id = deleted.task_id
  -- Name an effect only if this task was the last to send it: the reported key is not trusted.
  left join lateral (
    select e.key
    from holdfast.effect e
    where e.tenant_id = deleted.tenant_id and e.key = fenced.effect and e.task_id = deleted.task_id
    limit 1
  ) sent on true
  where fenced.next_state = 'f' and fenced.fingerprint is not null
  returning tenant_id, task_id, attempts
),
failures as (
  insert into holdfast.failure (
    task_id, attempt, tenant_id, worker_id, generation, state, lease_token, started_at, ended_at, code, type, message,
    traceback, decision, reason, rule, sentence, retry_at, class
  )
  select task_id, attempt, tenant_id, worker_id, generation, outcome::"char", lease_token, started_at,
    holdfast.instant(), code, type, message, traceback,
    case next_state when 'x' then 'cancel' when 'f' then 'stop' else 'retry' end, reason, rule, sentence,
    case when next_state in ('q', 'w') then holdfast.instant() + make_interval(secs => delay_seconds) end, class
  from fenced
  where outcome in ('f', 't', 'l')
),
recorded as (
  insert into holdfast.attempt (
    task_id, started_at, ended_at, attempt, tenant_id, worker_id, generation, state, lease_token
  )
  select task_id, started_at, holdfast.instant(), attempt, tenant_id, worker_id, generation, outcome::"char", lease_token
  from fenced
  where outcome in ('x', 'e')
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select tenant_id, kind, array_agg(task_id), array_agg(attempt)
  from (
    select tenant_id, task_id, attempt,
      case when next_state = 'x' then 'task.canceled' when outcome = 'e' then 'task.released'
        when next_state = 'f' then 'task.failed' else 'task.retrying' end as kind
    from fenced
    union all
    select tenant_id, task_id, attempt, 'task.lost'
    from fenced
    where outcome = 'l'
    union all
    select tenant_id, task_id, attempts, 'dead_letter.opened'
    from letters
  ) as happened
  group by tenant_id, kind
)
select
  (select count(*) from fenced) as accepted,
  (select array_agg(task_id) from deleted where is_awaited) as awaited,
  again.tasks as failed_again, again.runs as failed_again_runs,
  nodes.tasks as node_tasks, nodes.runs as node_runs, nodes.numbers as node_numbers, nodes.states as node_states,
  (select array_agg(distinct lane_id) from moved where state = 'q') as lanes
from (
  select array_agg(deleted.task_id) as tasks, array_agg(deleted.run_id) as runs, array_agg(deleted.node_no) as numbers,
    array_agg(fenced.next_state) as states
  from deleted
  join fenced on fenced.task_id = deleted.task_id
  where deleted.run_id is not null
) nodes
cross join (
  select array_agg(deleted.task_id) as tasks, array_agg(deleted.run_id) filter (where deleted.run_id is not null) as runs
  from deleted
  join fenced on fenced.task_id = deleted.task_id
  where deleted.generation > 1 and fenced.next_state = 'f'
) again;

-- name: find_settled(task_ids, attempts, lease_tokens, outputs[?], codes, messages) -> rows
-- Return how these attempts were settled before by this very lease, and whether with the same output, or the same code
-- and message. An identical repeated report gets the same answer; a different one does not.
select a.task_id, a.attempt, a.state::text as state, a.state <> 'c' or a.output is not distinct from g.output as is_same
from holdfast.attempt a
join unnest(@task_ids::bigint[], @attempts::int[], @lease_tokens::uuid[], @outputs::bytea[]) as g (task_id, attempt, lease_token, output)
  on g.task_id = a.task_id and g.attempt = a.attempt and g.lease_token = a.lease_token
where a.task_id = any(@task_ids::bigint[])
union all
select f.task_id, f.attempt, f.state::text, (f.code, f.message) is not distinct from (g.code, g.message)
from holdfast.failure f
join unnest(@task_ids::bigint[], @attempts::int[], @lease_tokens::uuid[], @codes::text[], @messages::text[]) as g (
  task_id, attempt, lease_token, code, message
)
  on g.task_id = f.task_id and g.attempt = f.attempt and g.lease_token = f.lease_token
where f.task_id = any(@task_ids::bigint[]);

-- name: find_winner(task_id) -> row?
-- nullable: worker_id
-- Return the attempt that runs or ended a task whose report was refused.
select t.state::text as state, t.attempt, t.worker_id, t.tenant_id
from holdfast.live t
where t.task_id = @task_id
union all
select a.state::text, a.attempt, a.worker_id, a.tenant_id
from holdfast.attempt a
where a.task_id = @task_id and a.state = 'c'
union all
select e.state::text, e.attempt, null, e.tenant_id
from holdfast.ended e
where e.task_id = @task_id;
