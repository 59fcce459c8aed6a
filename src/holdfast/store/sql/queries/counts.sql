-- name: busy_lanes(tenant_id) -> rows
-- Return lanes with queued tasks, and their queues.
select l.lane_id, l.queue_id
from holdfast.lane l
where l.tenant_id = @tenant_id and exists (select from holdfast.live t where t.state = 'q' and t.lane_id = l.lane_id);

-- name: queued_counts(full, share) -> rows
-- Count the queued tasks of some lanes, each up to a bound (see holdfast.queued_by_lane).
select q.lane_id, q.tasks
from holdfast.queued_by_lane(@full::int[], @share::bigint) q;

-- name: held_counts(tenant_id, held) -> rows
-- Count running, reserved and waiting tasks per queue, up to a bound (see holdfast.running_and_waiting_by_lane).
select l.queue_id,
  coalesce(sum(h.tasks) filter (where h.state = 'r'), 0)::bigint as running,
  coalesce(sum(h.tasks) filter (where h.state = 'w' and h.is_retrying), 0)::bigint as retrying,
  coalesce(sum(h.tasks) filter (where h.state = 'v' or (h.state = 'w' and not h.is_retrying)), 0)::bigint as delayed
from holdfast.running_and_waiting_by_lane(@tenant_id, @held) h
join holdfast.lane l on l.lane_id = h.lane_id
group by l.queue_id;

-- name: ended_counts(tenant_id, limit) -> rows
-- nullable: failed, canceled
-- Count failed and canceled tasks per queue, among the newest @limit of each.
select l.queue_id, sum(e.tasks) filter (where e.state = 'f')::bigint as failed,
  sum(e.tasks) filter (where e.state = 'x')::bigint as canceled
from (
  select e.lane_id, e.state, count(*) as tasks
  from (
    (select lane_id, state from holdfast.ended where tenant_id = @tenant_id and state = 'f' order by ended_at desc limit @limit)
    union all
    (select lane_id, state from holdfast.ended where tenant_id = @tenant_id and state = 'x' order by ended_at desc limit @limit)
  ) e
  group by e.lane_id, e.state
) e
join holdfast.lane l on l.lane_id = e.lane_id
group by l.queue_id;

-- name: completed_counts(tenant_id, events) -> rows
-- Count completed tasks per queue: the stored counts, and the completions among at most @events later events (see
-- holdfast.completed_by_lane).
select l.queue_id, sum(c.tasks)::bigint as completed
from holdfast.completed_by_lane(@tenant_id::int, @events::bigint) c
join holdfast.lane l on l.lane_id = c.lane_id
group by l.queue_id;

-- name: uncounted_events(events) -> value
-- Return how many events followed the last count of completions, up to a bound.
select holdfast.uncounted_events(@events::bigint);

-- name: counting_pays(pass_events_min, limit) -> value?
-- Return whether at least @pass_events_min events followed the last count of completions, and a pass would not read many more in
-- vain: while a transaction is open that began before all of them, the events counted since are read again each time.
select fresh.events >= @pass_events_min and (
  select count(*)
  from (
    select
    from holdfast.event e
    where e.xid >= (select holdfast.uncounted_from(c) from holdfast.counted c)
      and e.xid < (select (c.base + pg_snapshot_xmax(c.seen)::text::bigint)::text::xid8 from holdfast.counted c)
    limit 4 * fresh.events
  ) again
) < 4 * fresh.events
from (
  select count(*) as events
  from (
    select
    from holdfast.event e
    where e.xid >= (select (c.base + pg_snapshot_xmax(c.seen)::text::bigint)::text::xid8 from holdfast.counted c)
    limit @limit
  ) e
) fresh;

-- name: count_completed(is_forced) -> value?
-- Count the completions among the events since the last count; on demand also if another process does so at this
-- moment.
select holdfast.count_completed(@is_forced::boolean);

-- name: blocked_counts(tenant_id, nodes, runs) -> rows
-- nullable: queue_id
-- Count blocked nodes per queue, in the newest @runs open runs. A run whose nodes all belong to one queue has the count in
-- its own row. For the others the nodes are read, in as many runs as fit into a bound on nodes (@nodes), small ones first.
-- The row without a queue says whether any were left out.
with looks as materialized (
  select n.id, n.is_edge
  from holdfast.newest_ids('open runs', @tenant_id, 0, 9223372036854775807, @runs) n
),
open as materialized (
  select r.run_id, r.snapshot_id, r.nodes, r.pending - r.active as blocked
  from looks
  cross join lateral (select r.* from holdfast.run r where r.run_id = looks.id limit 1) r
  where not looks.is_edge and r.tenant_id = @tenant_id and r.pending > r.active and r.canceled_at is null
),
flows as materialized (
  select s.snapshot_id, case when min(coalesce(l.queue_id, 0)) = max(coalesce(l.queue_id, 0)) then max(l.queue_id) end as queue_id
  from holdfast.snapshot s
  cross join lateral unnest(s.lane_ids) as g (lane_id)
  left join holdfast.lane l on l.lane_id = g.lane_id
  where s.snapshot_id = any(array(select distinct open.snapshot_id from open))
  group by s.snapshot_id
),
mixed as materialized (
  select open.run_id, open.snapshot_id, open.nodes, sum(open.nodes) over (order by open.nodes, open.run_id desc) as looked
  from open
  join flows on flows.snapshot_id = open.snapshot_id
  where flows.queue_id is null
),
looked as materialized (
  select mixed.run_id, mixed.snapshot_id, mixed.nodes
  from mixed
  where mixed.looked <= @nodes
),
-- Each node once, and once more for everything that shows it is not blocked; grouped by id, never joined in pairs.
nodes as (
  select looked.run_id + g.number as task_id, g.lane_id
  from looked
  join holdfast.snapshot s on s.snapshot_id = looked.snapshot_id
  cross join lateral unnest(s.lane_ids) with ordinality as g (lane_id, number)
  union all
  select t.task_id, 0
  from looked
  cross join lateral (
    select t.task_id
    from holdfast.live t
    where t.task_id between looked.run_id + 1 and looked.run_id + looked.nodes
    union all
    select e.task_id
    from holdfast.ended e
    where e.task_id between looked.run_id + 1 and looked.run_id + looked.nodes
    union all
    select n.run_id + 1 + n.node_no
    from holdfast.node n
    where n.run_id = looked.run_id and n.state not in ('b', 'h', 'r')
    union all
    select a.task_id
    from holdfast.attempt a
    left join lateral (
      select n.generation
      from holdfast.node n
      where n.run_id = looked.run_id and n.node_no = a.task_id - looked.run_id - 1
      limit 1
    ) n on true
    where a.task_id between looked.run_id + 1 and looked.run_id + looked.nodes and a.state = 'c'
      and a.generation = coalesce(n.generation, 1)
  ) t
),
by_queue as (
  select flows.queue_id, sum(open.blocked) as blocked
  from open
  join flows on flows.snapshot_id = open.snapshot_id
  where flows.queue_id is not null
  group by flows.queue_id
  union all
  select l.queue_id, count(*)
  from (select max(nodes.lane_id) as lane_id from nodes group by nodes.task_id having count(*) = 1) n
  join holdfast.lane l on l.lane_id = n.lane_id
  group by l.queue_id
)
select by_queue.queue_id, sum(by_queue.blocked)::bigint as blocked, false as is_partial
from by_queue
group by by_queue.queue_id
union all
select null, 0, (select coalesce(max(mixed.looked), 0) from mixed) > @nodes
  or exists (select from looks where looks.is_edge);
