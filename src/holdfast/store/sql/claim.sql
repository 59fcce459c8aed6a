-- name: lane_heads
-- The oldest queued task of every lane and priority that this worker may run, of its own tenant: one index probe each,
-- and one more for the oldest node behind a plain task. The ids of nodes are the upper half of a block, and every half
-- begins at a multiple of five thousand million (tenants do not see blocks): what comes first past the next of them is
-- that node, or a plain task that goes before it, of a later block or of a day with more tasks than that.
-- Lanes of an open breaker are not among them; those of one that may be tried again come with its number, and say that
-- they are on trial.
with recursive head as (
  select l.lane_id, l.queue_id, h.priority, h.task_id, h.is_node, b.breaker_id,
    coalesce(b.state <> 'c', false) as is_on_trial,
    exists (select from holdfast.quota k where k.share is not null and holdfast.quota_covers(k, l)) as is_shared
  from holdfast.lane l
  join holdfast.queue q on q.queue_id = l.queue_id
  left join holdfast.breaker b on b.tenant_id = l.tenant_id and b.action = l.action
  cross join lateral (
    select t.priority, t.task_id, t.run_id is not null as is_node
    from holdfast.live t
    where t.state = 'q' and t.lane_id = l.lane_id
    order by t.priority, t.task_id
    limit 1
  ) h
  where l.action = any($1::text[])
    and l.tenant_id = (select w.tenant_id from holdfast.worker w where w.worker_id = $3)
    and ($2::text[] is null or q.name = any($2))
    and q.paused_at is null
    and (b.breaker_id is null or b.state <> 'o' or b.trial_at <= holdfast.instant())
  union all
  select head.lane_id, head.queue_id, h.priority, h.task_id, h.is_node, head.breaker_id, head.is_on_trial,
    head.is_shared
  from head
  cross join lateral (
    select t.priority, t.task_id, t.run_id is not null as is_node
    from holdfast.live t
    where t.state = 'q' and t.lane_id = head.lane_id and t.priority > head.priority
    order by t.priority, t.task_id
    limit 1
  ) h
)
select head.lane_id, head.priority, head.task_id, head.is_node, case when behind.is_node then behind.task_id end as node_id,
  head.queue_id, (q.max_running is not null or q.starts_per_second is not null) as is_limited, head.breaker_id,
  head.is_on_trial, head.is_shared, n.tenant_id, n.max_running is not null as is_tenant_limited
from head
left join lateral (
  select t.task_id, t.run_id is not null as is_node
  from holdfast.live t
  where not head.is_node and t.state = 'q' and t.lane_id = head.lane_id
    and (t.priority, t.task_id) >= (head.priority, (head.task_id / 5000000000 + 1) * 5000000000)
    and t.priority <= head.priority
  order by t.priority, t.task_id
  limit 1
) behind on true
join holdfast.queue q on q.queue_id = head.queue_id
join holdfast.tenant n on n.tenant_id = q.tenant_id;

-- name: lane_heads_from
-- The same, not from the beginning of every lane but from where this worker left off: while an old snapshot is open, rows
-- that were taken can neither be removed nor be marked as dead, and a look would pass all of them each time. Given are
-- the parts of lanes to look at, from ($5, $6) up to before ($7, $8); a lane of which none is given is looked at whole.
-- What was queued again before these parts is not found: a look at everything comes often enough (see `Claimer`).
with recursive given as materialized (
  select g.lane_id, g.low_priority, g.low_id, g.high_priority, g.high_id
  from unnest($4::int[], $5::smallint[], $6::bigint[], $7::smallint[], $8::bigint[])
    as g (lane_id, low_priority, low_id, high_priority, high_id)
),
part as materialized (
  select l.lane_id, l.queue_id, b.breaker_id, coalesce(b.state <> 'c', false) as is_on_trial,
    exists (select from holdfast.quota k where k.share is not null and holdfast.quota_covers(k, l)) as is_shared,
    coalesce(given.low_priority, -1::smallint) as low_priority, coalesce(given.low_id, 0) as low_id,
    coalesce(given.high_priority, 32767::smallint) as high_priority, coalesce(given.high_id, 0) as high_id
  from holdfast.lane l
  join holdfast.queue q on q.queue_id = l.queue_id
  left join holdfast.breaker b on b.tenant_id = l.tenant_id and b.action = l.action
  left join given on given.lane_id = l.lane_id
  where l.action = any($1::text[])
    and l.tenant_id = (select w.tenant_id from holdfast.worker w where w.worker_id = $3)
    and ($2::text[] is null or q.name = any($2))
    and q.paused_at is null
    and (b.breaker_id is null or b.state <> 'o' or b.trial_at <= holdfast.instant())
),
head as (
  select part.lane_id, part.queue_id, h.priority, h.task_id, h.is_node, part.breaker_id, part.is_on_trial, part.is_shared,
    part.high_priority, part.high_id
  from part
  cross join lateral (
    select t.priority, t.task_id, t.run_id is not null as is_node
    from holdfast.live t
    where t.state = 'q' and t.lane_id = part.lane_id
      and (t.priority, t.task_id) >= (part.low_priority, part.low_id)
      and (t.priority, t.task_id) < (part.high_priority, part.high_id)
    order by t.priority, t.task_id
    limit 1
  ) h
  union all
  select head.lane_id, head.queue_id, h.priority, h.task_id, h.is_node, head.breaker_id, head.is_on_trial,
    head.is_shared, head.high_priority, head.high_id
  from head
  cross join lateral (
    select t.priority, t.task_id, t.run_id is not null as is_node
    from holdfast.live t
    where t.state = 'q' and t.lane_id = head.lane_id and t.priority > head.priority
      and (t.priority, t.task_id) < (head.high_priority, head.high_id)
    order by t.priority, t.task_id
    limit 1
  ) h
)
select head.lane_id, head.priority, head.task_id, head.is_node, case when behind.is_node then behind.task_id end as node_id,
  head.queue_id, (q.max_running is not null or q.starts_per_second is not null) as is_limited, head.breaker_id,
  head.is_on_trial, head.is_shared, n.tenant_id, n.max_running is not null as is_tenant_limited
from head
left join lateral (
  select t.task_id, t.run_id is not null as is_node
  from holdfast.live t
  -- A part that ends within its priority is followed by that of the nodes.
  where not head.is_node and head.high_priority > head.priority and t.state = 'q' and t.lane_id = head.lane_id
    and (t.priority, t.task_id) >= (head.priority, (head.task_id / 5000000000 + 1) * 5000000000)
    and t.priority <= head.priority
  order by t.priority, t.task_id
  limit 1
) behind on true
join holdfast.queue q on q.queue_id = head.queue_id
join holdfast.tenant n on n.tenant_id = q.tenant_id;

-- name: claim
-- Take queued tasks for a registered worker: a fresh lease each, under one fresh token for all that this claim takes
-- (no task is ever granted the same token twice, and making one for each costs a fifth of the claim). Rows others hold
-- are skipped; a queue paused since the plan was made gives nothing, nor does an action whose breaker opened. What is on
-- trial ($7), or of a limited queue ($8) or tenant ($9), is taken only by who counted the room for it. It does not prove
-- that the worker will run them. Places in the queue are compared as rows, which only the index of queued tasks can do:
-- with equal signs and statistics of a single lane the planner goes through all tasks by their ids.
with asked as materialized (
  select a.lane_id, a.priority, a.floor, a.count
  from unnest($1::int[], $2::smallint[], $3::bigint[], $4::int[]) as a (lane_id, priority, floor, count)
  join holdfast.lane l on l.lane_id = a.lane_id
  join holdfast.queue q on q.queue_id = l.queue_id and q.paused_at is null
    and (coalesce(q.max_running, q.starts_per_second) is null or q.queue_id = any($8::int[]))
  join holdfast.tenant n on n.tenant_id = l.tenant_id and (n.max_running is null or n.tenant_id = any($9::int[]))
  join holdfast.worker w on w.worker_id = $5 and w.state = 'active' and w.tenant_id = l.tenant_id
  left join holdfast.breaker b on b.tenant_id = l.tenant_id and b.action = l.action
  where b.breaker_id is null or b.state = 'c' or (b.state = 'h' and b.breaker_id = any($7::bigint[]))
),
pick as materialized (
  select c.task_id
  from asked
  cross join lateral (
    select t.task_id
    from holdfast.live t
    where t.state = 'q' and (t.lane_id, t.priority, t.task_id) >= (asked.lane_id, asked.priority, asked.floor)
      and (t.lane_id, t.priority) <= (asked.lane_id, asked.priority)
    order by t.lane_id, t.priority, t.task_id
    limit asked.count
    for no key update skip locked
  ) c
),
taken as (
  update holdfast.live t
  set state = 'r', attempt = t.attempt + 1, worker_id = $5, lease_token = (select gen_random_uuid()),
    started_at = holdfast.instant(), lease_expires_at = holdfast.instant() + make_interval(secs => $6)
  where t.task_id = any(array(select task_id from pick))
  returning t.task_id, t.attempt, t.lease_token, t.lane_id, t.policy_id, t.retries, t.losses, t.tenant_id,
    t.run_id, t.node_no, t.priority
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select tenant_id, 'task.started', array_agg(task_id), array_agg(attempt)
  from taken
  group by tenant_id
)
select taken.task_id, taken.attempt, taken.lease_token, taken.lane_id, taken.policy_id, taken.retries, taken.losses,
  taken.tenant_id, taken.run_id, taken.node_no, b.input, b.tags, taken.priority
from taken
left join lateral (
  select b.input, b.tags
  from holdfast.body b
  where b.task_id = taken.task_id and taken.run_id is null
  limit 1
) b on true;

-- name: claim_task
-- Take one named queued task for a registered worker, under the same rules as a batch: of an action and a queue that it
-- serves ($5, $6). Workers that are not launched leave out actions that have a launcher. $4 is the half-open breaker that
-- granted a trial, 0 if none did.
with taken as (
  update holdfast.live t
  set state = 'r', attempt = t.attempt + 1, worker_id = $2, lease_token = gen_random_uuid(),
    started_at = holdfast.instant(), lease_expires_at = holdfast.instant() + make_interval(secs => $3)
  where t.task_id = $1 and t.state = 'q'
    and exists (
      select from holdfast.worker w where w.worker_id = $2 and w.state = 'active' and w.tenant_id = t.tenant_id
    )
    and exists (
      select from holdfast.lane l
      join holdfast.queue q on q.queue_id = l.queue_id
      where l.lane_id = t.lane_id and q.paused_at is null
        and l.action = any($5::text[]) and ($6::text[] is null or q.name = any($6))
    )
    and not exists (
      select from holdfast.lane l
      join holdfast.breaker b on b.tenant_id = l.tenant_id and b.action = l.action
      where l.lane_id = t.lane_id and b.state <> 'c' and (b.state = 'o' or b.breaker_id <> $4)
    )
  returning t.task_id, t.attempt, t.lease_token, t.lane_id, t.policy_id, t.retries, t.losses, t.tenant_id,
    t.run_id, t.node_no
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select tenant_id, 'task.started', array[task_id], array[attempt]
  from taken
)
select taken.*, b.input, b.tags
from taken
left join holdfast.body b on b.task_id = taken.task_id;

-- name: why_not_claimable
-- What stands in the way of claiming one named task, if anything does, and whose room the claim has to ask for.
select t.state::text as state, t.is_retrying, t.due_at, t.lease_expires_at > holdfast.instant() as has_valid_lease,
  q.paused_at is not null as is_paused, q.queue_id,
  (q.max_running is not null or q.starts_per_second is not null) as is_limited,
  (select w.state from holdfast.worker w where w.worker_id = $2 and w.tenant_id = t.tenant_id) as worker_state,
  b.breaker_id, coalesce(b.state <> 'c', false) as is_on_trial, n.tenant_id, n.max_running is not null as is_tenant_limited,
  exists (select from holdfast.quota k where k.share is not null and holdfast.quota_covers(k, l)) as is_shared,
  l.action = any($3::text[]) and ($4::text[] is null or q.name = any($4)) as is_served
from holdfast.live t
join holdfast.lane l on l.lane_id = t.lane_id
join holdfast.queue q on q.queue_id = l.queue_id
join holdfast.tenant n on n.tenant_id = t.tenant_id
left join holdfast.breaker b on b.tenant_id = l.tenant_id and b.action = l.action
where t.task_id = $1;

-- name: unclaimed_node
-- Where a node of a run stands that has no live task: it waits, was passed over, or is over. Told to workers of its own
-- tenant only.
select n.state
from (select w.run_id, w.node_no from holdfast.locate_task($1) w where w.item_no is null limit 1) w
join holdfast.run r on r.run_id = w.run_id
join holdfast.worker c on c.worker_id = $2 and c.tenant_id = r.tenant_id
cross join lateral (select n.state from holdfast.nodes_of(r.run_id) n where n.node_no = w.node_no limit 1) n;

-- name: held_by
-- What this worker holds according to the database and does not know of: the answer to a claim got lost. The lease
-- begins anew, because the worker cannot know when it began. A lease that expired is not revived.
with mine as materialized (
  select t.task_id
  from holdfast.live t
  where t.state = 'r' and t.due_at is null and t.tenant_id = (select w.tenant_id from holdfast.worker w where w.worker_id = $1)
    and t.worker_id = $1 and t.lease_expires_at > holdfast.instant()
    and not exists (
      select from unnest($2::bigint[], $5::uuid[]) as known (task_id, lease_token)
      where known.task_id = t.task_id and known.lease_token = t.lease_token
    )
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

-- name: held_task
-- The lease of one named task, if this worker has it: the answer to its claim got lost. The lease begins anew, because the
-- worker cannot know when it began. A lease that expired is not revived.
with found as (
  update holdfast.live t
  set lease_expires_at = greatest(t.lease_expires_at, holdfast.instant() + make_interval(secs => $3))
  where t.task_id = $1 and t.state = 'r' and t.worker_id = $2 and t.lease_expires_at > holdfast.instant()
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

-- name: try_limits
-- Serialise claims on limited queues until this transaction ends: those that could be locked. A claim may come with ends
-- that are settled in the same transaction, so it waits for nobody: what another transaction counts is left out.
select q.queue_id
from unnest($1::int[]) as q (queue_id)
where pg_try_advisory_xact_lock(1752132965, q.queue_id);

-- name: lock_limit
-- The same for a named task of one limited queue, which waits: its transaction holds nothing yet.
select pg_advisory_xact_lock(1752132965, $1);

-- name: remaining_capacity
-- How many tasks limited queues may start now. Counted from leased rows under `try_limits`: nothing to leak. A bucket of
-- starts holds one second's worth, at least one, and begins full. Mind that `greatest` passes over nulls: what is not
-- limited, or never counted, is told apart first.
select q.queue_id,
  q.max_running - (
    select count(*)::int
    from holdfast.live t
    join holdfast.lane l on l.lane_id = t.lane_id
    where t.state in ('r', 'v') and l.queue_id = q.queue_id
  ) as running_room,
  floor(holdfast.available_starts(q))::int as starts_room
from holdfast.queue q
where q.queue_id = any($1::int[]);

-- name: spend_starts
-- Take tokens from the starts-per-second buckets of queues, under `try_limits`.
update holdfast.queue q
set starts_left = greatest(0, holdfast.available_starts(q) - s.started),
  starts_counted_at = greatest(q.starts_counted_at, holdfast.instant())
from unnest($1::int[], $2::int[]) as s (queue_id, started)
where q.queue_id = s.queue_id and q.queue_id = any($1::int[]) and q.starts_per_second is not null;
