-- name: lane_heads(actions, queues?, worker_id) -> rows
-- nullable: node_id, breaker_id
-- Return the oldest queued task of every lane and priority that this worker may run, in its own tenant: one index probe
-- each, and one more for the oldest node after a plain task. Node ids are the upper half of a block, and every half
-- begins at a multiple of five thousand million (tenants do not see blocks). The first task past the next multiple is
-- that node, or a plain task that precedes it, from a later block or from a day with more tasks than that. Lanes of an
-- open breaker are left out; lanes whose breaker may be tried again are returned with `is_on_trial`.
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
  where l.action = any(@actions::text[])
    and l.tenant_id = (select w.tenant_id from holdfast.worker w where w.worker_id = @worker_id)
    and (@queues::text[] is null or q.name = any(@queues))
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

-- name: lane_heads_from(actions, queues?, worker_id, lane_ids, low_priorities, low_ids, high_priorities, high_ids) ->
--   rows
-- nullable: node_id, breaker_id
-- Like lane_heads, but beginning where this worker stopped. While an old snapshot is open, claimed rows can neither be
-- removed nor marked as dead, and a query from the beginning would read all of them each time. The parameters are the
-- parts of lanes to read, from (@low_priorities, @low_ids) to before (@high_priorities, @high_ids); a lane without a part is read whole. A task that was queued
-- again before these parts is not found; a query of all lanes follows often enough (see `Claimer`).
with recursive given as materialized (
  select g.lane_id, g.low_priority, g.low_id, g.high_priority, g.high_id
  from unnest(@lane_ids::int[], @low_priorities::smallint[], @low_ids::bigint[], @high_priorities::smallint[], @high_ids::bigint[])
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
  where l.action = any(@actions::text[])
    and l.tenant_id = (select w.tenant_id from holdfast.worker w where w.worker_id = @worker_id)
    and (@queues::text[] is null or q.name = any(@queues))
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
  -- A part that ends within its priority is followed by the part of its nodes.
  where not head.is_node and head.high_priority > head.priority and t.state = 'q' and t.lane_id = head.lane_id
    and (t.priority, t.task_id) >= (head.priority, (head.task_id / 5000000000 + 1) * 5000000000)
    and t.priority <= head.priority
  order by t.priority, t.task_id
  limit 1
) behind on true
join holdfast.queue q on q.queue_id = head.queue_id
join holdfast.tenant n on n.tenant_id = q.tenant_id;

-- name: claim(lane_ids, priorities, floors, counts, worker_id, lease_seconds, breaker_ids, queue_ids, tenant_ids) ->
--   rows
-- nullable: run_id, node_no, input, tags
-- Claim queued tasks for a registered worker: each gets a new lease, all under one new token (no task ever gets the
-- same token twice, and one token per task would cost a fifth of the claim). Locked rows are skipped. A queue that was
-- paused since the plan was made gives nothing, nor does an action whose breaker opened. Tasks on trial (@breaker_ids), of a
-- limited queue (@queue_ids) or of a limited tenant (@tenant_ids) are claimed only if the caller has counted their capacity. The
-- statement does not prove that the worker will run them. Positions in the queue are compared as rows, which only the
-- index of queued tasks supports: with equality conditions and statistics of a single lane the planner would scan all
-- tasks by id.
with asked as materialized (
  select a.lane_id, a.priority, a.floor, a.count
  from unnest(@lane_ids::int[], @priorities::smallint[], @floors::bigint[], @counts::int[]) as a (lane_id, priority, floor, count)
  join holdfast.lane l on l.lane_id = a.lane_id
  join holdfast.queue q on q.queue_id = l.queue_id and q.paused_at is null
    and (coalesce(q.max_running, q.starts_per_second) is null or q.queue_id = any(@queue_ids::int[]))
  join holdfast.tenant n on n.tenant_id = l.tenant_id and (n.max_running is null or n.tenant_id = any(@tenant_ids::int[]))
  join holdfast.worker w on w.worker_id = @worker_id and w.state = 'active' and w.tenant_id = l.tenant_id
  left join holdfast.breaker b on b.tenant_id = l.tenant_id and b.action = l.action
  where b.breaker_id is null or b.state = 'c' or (b.state = 'h' and b.breaker_id = any(@breaker_ids::bigint[]))
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
  set state = 'r', attempt = t.attempt + 1, worker_id = @worker_id, lease_token = (select gen_random_uuid()),
    started_at = holdfast.instant(), lease_expires_at = holdfast.instant() + make_interval(secs => @lease_seconds)
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

-- name: claim_task(task_id, worker_id, lease_seconds, granted_breaker_id, actions, queues?) -> row?
-- nullable: run_id, node_no, input, tags
-- Claim one queued task by id for a registered worker, under the rules of a batch: of an action and queue that it
-- serves (@actions, @queues). Workers that were not launched leave out actions that have a launcher. @granted_breaker_id is the half-open breaker
-- that granted a trial, 0 if none did.
with taken as (
  update holdfast.live t
  set state = 'r', attempt = t.attempt + 1, worker_id = @worker_id, lease_token = gen_random_uuid(),
    started_at = holdfast.instant(), lease_expires_at = holdfast.instant() + make_interval(secs => @lease_seconds)
  where t.task_id = @task_id and t.state = 'q'
    and exists (
      select from holdfast.worker w where w.worker_id = @worker_id and w.state = 'active' and w.tenant_id = t.tenant_id
    )
    and exists (
      select from holdfast.lane l
      join holdfast.queue q on q.queue_id = l.queue_id
      where l.lane_id = t.lane_id and q.paused_at is null
        and l.action = any(@actions::text[]) and (@queues::text[] is null or q.name = any(@queues))
    )
    and not exists (
      select from holdfast.lane l
      join holdfast.breaker b on b.tenant_id = l.tenant_id and b.action = l.action
      where l.lane_id = t.lane_id and b.state <> 'c' and (b.state = 'o' or b.breaker_id <> @granted_breaker_id)
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

-- name: why_not_claimable(task_id, worker_id, actions, names?) -> row?
-- nullable: due_at, has_valid_lease, worker_state, breaker_id
-- Return what prevents the claim of one task, if anything, and the limits whose capacity the claim needs.
select t.state::text as state, t.is_retrying, t.due_at, t.lease_expires_at > holdfast.instant() as has_valid_lease,
  q.paused_at is not null as is_paused, q.queue_id,
  (q.max_running is not null or q.starts_per_second is not null) as is_limited,
  (select w.state from holdfast.worker w where w.worker_id = @worker_id and w.tenant_id = t.tenant_id) as worker_state,
  b.breaker_id, coalesce(b.state <> 'c', false) as is_on_trial, n.tenant_id, n.max_running is not null as is_tenant_limited,
  exists (select from holdfast.quota k where k.share is not null and holdfast.quota_covers(k, l)) as is_shared,
  l.action = any(@actions::text[]) and (@names::text[] is null or q.name = any(@names)) as is_served
from holdfast.live t
join holdfast.lane l on l.lane_id = t.lane_id
join holdfast.queue q on q.queue_id = l.queue_id
join holdfast.tenant n on n.tenant_id = t.tenant_id
left join holdfast.breaker b on b.tenant_id = l.tenant_id and b.action = l.action
where t.task_id = @task_id;

-- name: unclaimed_node(task_id, worker_id) -> row?
-- Return the state of a node that has no live task: it waits, was skipped, or has ended. Only for workers of its
-- tenant.
select n.state
from (select w.run_id, w.node_no from holdfast.locate_task(@task_id) w where w.item_no is null limit 1) w
join holdfast.run r on r.run_id = w.run_id
join holdfast.worker c on c.worker_id = @worker_id and c.tenant_id = r.tenant_id
cross join lateral (select n.state from holdfast.nodes_of(r.run_id) n where n.node_no = w.node_no limit 1) n;

-- name: held_by(worker_id, task_ids, lease_seconds, limit, lease_tokens) -> rows
-- nullable: run_id, node_no, input, tags
-- Return leases that this worker owns but does not know, because the response to a claim was lost. The lease is
-- renewed, because the worker cannot know when it began. An expired lease is not revived.
with mine as materialized (
  select t.task_id
  from holdfast.live t
  where t.state = 'r' and t.due_at is null and t.tenant_id = (select w.tenant_id from holdfast.worker w where w.worker_id = @worker_id)
    and t.worker_id = @worker_id and t.lease_expires_at > holdfast.instant()
    and not exists (
      select from unnest(@task_ids::bigint[], @lease_tokens::uuid[]) as known (task_id, lease_token)
      where known.task_id = t.task_id and known.lease_token = t.lease_token
    )
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

-- name: held_task(task_id, worker_id, lease_seconds) -> row?
-- nullable: run_id, node_no, input, tags
-- Return the lease of one task, if this worker owns it: the response to its claim was lost. The lease is renewed,
-- because the worker cannot know when it began. An expired lease is not revived.
with found as (
  update holdfast.live t
  set lease_expires_at = greatest(t.lease_expires_at, holdfast.instant() + make_interval(secs => @lease_seconds))
  where t.task_id = @task_id and t.state = 'r' and t.worker_id = @worker_id and t.lease_expires_at > holdfast.instant()
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

-- name: try_limits(queue_ids) -> rows
-- Lock limited queues for claims until this transaction ends, and return those that could be locked. The same
-- transaction may settle attempts, so the claim never waits: a queue that another transaction has locked is left out.
select q.queue_id
from unnest(@queue_ids::int[]) as q (queue_id)
where pg_try_advisory_xact_lock(1752132965, q.queue_id);

-- name: lock_limit(queue_id) -> nothing
-- Lock one limited queue for the claim of one task. It waits, because its transaction has no other lock yet.
select pg_advisory_xact_lock(1752132965, @queue_id);

-- name: remaining_capacity(queue_ids) -> rows
-- nullable: running_room, starts_room
-- Return how many tasks limited queues may start now. Running tasks are counted from leased rows under `try_limits`, so
-- no counter can drift. A bucket of starts holds one second's worth, at least one, and begins full. `greatest` ignores
-- nulls, so unlimited and never counted queues are handled first.
select q.queue_id,
  q.max_running - (
    select count(*)::int
    from holdfast.live t
    join holdfast.lane l on l.lane_id = t.lane_id
    where t.state in ('r', 'v') and l.queue_id = q.queue_id
  ) as running_room,
  floor(holdfast.available_starts(q))::int as starts_room
from holdfast.queue q
where q.queue_id = any(@queue_ids::int[]);

-- name: spend_starts(queue_ids, starteds) -> nothing
-- Take tokens from the starts-per-second buckets of queues, under `try_limits`.
update holdfast.queue q
set starts_left = greatest(0, holdfast.available_starts(q) - s.started),
  starts_counted_at = greatest(q.starts_counted_at, holdfast.instant())
from unnest(@queue_ids::int[], @starteds::int[]) as s (queue_id, started)
where q.queue_id = s.queue_id and q.queue_id = any(@queue_ids::int[]) and q.starts_per_second is not null;
