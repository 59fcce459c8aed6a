-- name: runs_count_their_nodes() -> rows
-- The counters of a run equal those of its nodes: pending, active, failed.
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
  join holdfast.node_states n on n.run_id = recent.run_id
  group by n.run_id
)
select recent.run_id, recent.pending, counted.pending as pending_now, recent.active, counted.active as active_now,
  recent.failed, counted.failed as failed_now
from recent
join counted on counted.run_id = recent.run_id
where (recent.pending, recent.active, recent.failed) is distinct from (counted.pending, counted.active, counted.failed);

-- name: a_blocked_node_waits_for_another() -> rows
-- In an open run, a node is blocked only while one of its upstreams has not ended, or while the run is paused or at its
-- limit.
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
  select n.run_id, open.flow_id, open.holds_back, n.node_no, n.state, n.state_code
  from open
  join holdfast.node_states n on n.run_id = open.run_id
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
where stands.state = 'blocked' and case when stands.state_code = 'h' then not stands.holds_back else awaited.run_id is null end;

-- name: nodes_count_their_upstreams() -> rows
-- The counters of a blocked node equal those of its upstreams, by how they ended.
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
  join holdfast.node_states up on up.run_id = blocked.run_id and up.node_no = edge.upstream
  group by blocked.run_id, blocked.node_no
)
select blocked.run_id, blocked.node_no, blocked.pending, counted.pending as pending_now
from blocked
join counted on counted.run_id = blocked.run_id and counted.node_no = blocked.node_no
where (blocked.pending, blocked.succeeded, blocked.skipped, blocked.failed)
  is distinct from (counted.pending, counted.succeeded, counted.skipped, counted.failed);

-- name: a_live_node_belongs_to_an_open_run() -> rows
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

-- name: items_are_counted_right() -> rows
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
-- In a re-driven node, items that completed before are not released again.
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

-- name: a_node_that_maps_has_items_under_way() -> rows
-- Unless its run is paused or canceled, a node that maps has a live item: the last one to end releases others, or ends
-- the node.
select n.run_id, n.node_no
from holdfast.node n
join holdfast.run r on r.run_id = n.run_id
where n.state = 'm' and r.paused_at is null and r.canceled_at is null
  and not exists (select from holdfast.live t where t.task_id between n.items_first and n.items_first + n.items - 1);

-- name: a_node_that_runs_a_flow_has_its_run() -> rows
-- A node that waits for a child run has one that will answer it.
select n.run_id, n.node_no
from holdfast.node n
left join holdfast.run c on c.run_id = n.child_run_id and c.parent_run_id = n.run_id and c.parent_node = n.node_no
where n.state = 's' and (c.run_id is null or (c.state <> 'o' and c.is_answered and not c.is_wanted));

-- name: ended_children_are_answered() -> rows
-- Warning: a child run ended more than a minute ago and its end was not applied to the waiting node. See the log of the
-- maintenance loops.
select c.run_id, c.parent_run_id
from holdfast.run c
where c.parent_run_id is not null and c.state <> 'o' and not c.is_answered
  and c.ended_at < holdfast.instant() - interval '1 minute';

-- name: waits_end_at_their_deadline() -> rows
-- Warning: the deadline of a waiting node passed more than a minute ago and it still waits. See the log of the
-- maintenance loops.
select n.run_id, n.node_no
from holdfast.node n
where n.state = 'w' and n.deadline < holdfast.instant() - interval '1 minute';
