-- name: pause_run(run_id, tenant_id, actor, reason, is_held) -> row?
-- Pause an open run; @is_held: together with its parent. Queued and running tasks continue.
with paused as (
  update holdfast.run r
  set paused_at = holdfast.instant(), paused_by = @actor, paused_reason = @reason, is_held = @is_held
  where r.run_id = @run_id and r.tenant_id = @tenant_id and r.state = 'o' and r.paused_at is null and r.canceled_at is null
  returning r.run_id, r.tenant_id, r.generation
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'execution.paused', array[run_id], array[generation::int],
    jsonb_build_object('actor', @actor::text, 'reason', @reason::text)
  from paused
)
select run_id
from paused;

-- name: resume_run(run_id, actor, reason) -> row?
-- Resume an open run, under its lock.
with resumed as (
  update holdfast.run r
  set paused_at = null, paused_by = null, paused_reason = null, is_held = false
  where r.run_id = @run_id and r.state = 'o' and r.paused_at is not null
  returning r.run_id, r.tenant_id, r.generation
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'execution.resumed', array[run_id], array[generation::int],
    jsonb_build_object('actor', @actor::text, 'reason', @reason::text)
  from resumed
)
select run_id
from resumed;

-- name: children_to_hold(limit) -> rows
-- Return open child runs of paused runs that are not paused themselves.
select c.run_id, c.tenant_id, r.paused_by, r.paused_reason
from holdfast.run r
cross join lateral (
  select c.run_id, c.tenant_id
  from holdfast.run c
  where c.parent_run_id = r.run_id and c.state = 'o' and c.paused_at is null and c.canceled_at is null
  limit @limit
) c
where r.state = 'o' and r.paused_at is not null
limit @limit;

-- name: children_to_free(limit) -> rows
-- Return open runs that were paused with their parent, which is paused no longer.
select c.run_id, c.tenant_id, c.paused_by, c.paused_reason
from holdfast.run c
cross join lateral (
  select r.run_id
  from holdfast.run r
  where r.run_id = c.parent_run_id and r.paused_at is null
  limit 1
) r
where c.state = 'o' and c.paused_at is not null and c.is_held
limit @limit;

-- name: cancel_run(run_id, actor, reason) -> row?
-- Cancel an open run: blocked nodes end at once, active ones are counted down as they stop; without active nodes the
-- run ends. Requires its lock.
with ended as (
  update holdfast.run r
  set canceled_at = holdfast.instant(), canceled_by = @actor, cancel_reason = @reason, paused_at = null, paused_by = null,
    paused_reason = null, is_held = false, pending = r.active,
    state = case when r.active = 0 then 'x' else r.state end,
    ended_at = case when r.active = 0 then holdfast.instant() end
  where r.run_id = @run_id and r.state = 'o' and r.canceled_at is null
  returning r.run_id, r.tenant_id, r.generation, r.state, r.active, r.nodes, r.is_awaited, r.parent_run_id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, case state when 'x' then 'execution.canceled' else 'execution.canceling' end, array[run_id],
    array[generation::int], jsonb_build_object('actor', @actor::text, 'reason', @reason::text)
  from ended
)
select state::text as state, active, nodes, is_awaited, parent_run_id is not null as has_parent
from ended;

-- name: cancel_waits(run_id) -> rows
-- End the nodes of a canceled run that wait for an event, under its lock.
update holdfast.node n
set state = 'x'
where n.run_id = @run_id and n.state = 'w'
returning n.node_no;

-- name: children_to_cancel(limit) -> rows
-- nullable: canceled_by
-- Return open child runs of canceled runs that are not canceled yet, and open runs that were replaced.
select c.run_id, c.tenant_id, r.canceled_by, r.cancel_reason
from holdfast.run r
cross join lateral (
  select c.run_id, c.tenant_id
  from holdfast.run c
  where c.parent_run_id = r.run_id and c.state = 'o' and c.canceled_at is null
  limit @limit
) c
where r.state = 'o' and r.canceled_at is not null
union all
select c.run_id, c.tenant_id, null, 'the run that started it started another'
from holdfast.run c
where c.is_replaced and c.state = 'o' and c.canceled_at is null
limit @limit;

-- name: canceling_runs(limit, run_id) -> rows
-- nullable: cancel_reason
-- Return canceled open runs after @run_id that still have something to cancel: a waiting node, unreleased items, or a task
-- that was not asked to stop.
select r.run_id, r.tenant_id, r.nodes, r.canceled_by, r.cancel_reason
from holdfast.run r
where r.state = 'o' and r.canceled_at is not null and r.run_id > @run_id
  and coalesce(
    (
      select true
      from holdfast.node n
      where n.run_id = r.run_id and n.state = 'w'
      limit 1
    ),
    (
      select true
      from holdfast.node n
      where n.run_id = r.run_id and n.state = 'm' and coalesce(n.items_after, n.items_next) < n.items
      limit 1
    ),
    (
      select true
      from holdfast.live t
      where t.task_id between r.run_id + 1 and r.run_id + r.nodes and t.cancel_at is null
      limit 1
    ),
    (
      select true
      from holdfast.node n
      cross join lateral (
        select t.task_id
        from holdfast.live t
        where t.task_id between n.items_first and n.items_first + n.items - 1 and t.cancel_at is null
        limit 1
      ) t
      where n.run_id = r.run_id and n.state = 'm'
      limit 1
    )
  )
order by r.run_id
limit @limit;

-- name: run_tasks_to_cancel(run_id, nodes, limit) -> rows
-- Return tasks of a run that were not asked to stop yet: its nodes, and the items of its nodes.
select t.task_id
from holdfast.live t
where t.task_id between @run_id::bigint + 1 and @run_id::bigint + @nodes::int and t.cancel_at is null
union all
select t.task_id
from holdfast.node n
cross join lateral (
  select t.task_id
  from holdfast.live t
  where t.task_id between n.items_first and n.items_first + n.items - 1 and t.cancel_at is null
  limit @limit
) t
where n.run_id = @run_id and n.state = 'm'
limit @limit;

-- name: node_states(run_id, tenant_id) -> rows
-- nullable: state_code, pending, succeeded, skipped, failed, items, items_pending, items_failed, items_canceled,
--   items_first, child_run_id, deadline, wait_key, started_at, ended_at
-- Return the state of each node of a run (see holdfast.nodes_of).
select n.*
from holdfast.run r
cross join lateral holdfast.nodes_of(r.run_id) n
where r.run_id = @run_id and r.tenant_id = @tenant_id
order by n.node_no;

-- name: last_attempts(run_id, node_nos) -> rows
-- Return the number of the last attempt of some nodes, from which later attempts count on. Requires the lock of the
-- run.
select g.node_no, greatest(max(a.attempt), max(f.attempt), max(e.attempt), 0) as attempt
from unnest(@node_nos::int[]) as g (node_no)
left join holdfast.attempt a on a.task_id = @run_id::bigint + 1 + g.node_no
left join holdfast.failure f on f.task_id = @run_id::bigint + 1 + g.node_no
left join holdfast.ended e on e.task_id = @run_id::bigint + 1 + g.node_no
group by g.node_no;

-- name: reopen_run(run_id, node_nos, pending, failed, actor, reason, generation, attempts, completed_nodes) -> row
-- nullable: max_active, priority
-- Begin the next generation of a run: the given nodes lose their ends and count as pending again. Their items stay
-- recorded in past_items, and the events they used are not used again. A run that had ended is unpaused. The event
-- lists which of their tasks (@completed_nodes) had completed and no longer count as completed. Requires the lock of the run;
-- generation @generation is the guard.
with cleared as (
  delete from holdfast.ended e
  where e.run_id = @run_id and e.node_no = any(@node_nos::int[])
),
forgotten as (
  delete from holdfast.node n
  where n.run_id = @run_id and n.node_no = any(@node_nos::int[])
  returning n.*
),
remembered as (
  insert into holdfast.past_items (items_first, run_id, tenant_id, items, node_no, generation)
  select items_first, run_id, tenant_id, items, node_no, generation
  from forgotten
  where items > 0
),
taken as (
  insert into holdfast.past_signal (run_id, signal_id, tenant_id)
  select run_id, signal_id, tenant_id
  from forgotten
  where signal_id is not null
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select r.tenant_id, 'execution.redriven', array[r.run_id], array[r.generation + 1],
    jsonb_build_object('actor', @actor::text, 'reason', @reason::text, 'nodes', @node_nos::int[])
  from holdfast.run r
  where r.run_id = @run_id and r.state in ('o', 'c', 'f') and r.generation = @generation
  union all
  select r.tenant_id, 'task.revived', array(select @run_id::bigint + 1 + one from unnest(@node_nos::int[]) as one), @attempts::int[],
    jsonb_build_object('actor', @actor::text, 'reason', @reason::text, 'completed', @completed_nodes::text[])
  from holdfast.run r
  where r.run_id = @run_id and r.state in ('o', 'c', 'f') and r.generation = @generation
)
update holdfast.run r
set generation = r.generation + 1, state = 'o', ended_at = null, pending = r.pending + @pending, failed = r.failed - @failed,
  paused_at = case when r.state = 'o' then r.paused_at end, paused_by = case when r.state = 'o' then r.paused_by end,
  paused_reason = case when r.state = 'o' then r.paused_reason end, is_held = r.state = 'o' and r.is_held,
  is_answered = false, is_wanted = false
where r.run_id = @run_id and r.state in ('o', 'c', 'f') and r.generation = @generation and r.canceled_at is null
returning r.run_id, r.snapshot_id, r.tenant_id, r.generation, r.pending, r.active, r.failed, r.nodes, r.max_active,
  r.priority, r.paused_at is not null as is_paused, false as is_canceled;
