-- name: begin_items(run_id, node_no, tenant_id, generation, task_id, items_pending, items_next, lane_id, policy_id,
--   priority, max_retries, max_losses, attempt) -> nothing
-- Start a node as items: each is a task of its own, as many at once as the node allows. Requires the lock of its run.
with node as (
  insert into holdfast.node (
    run_id, node_no, tenant_id, state, generation, attempt, items_first, items, items_next, items_pending, items_failed,
    items_canceled
  )
  values (@run_id, @node_no, @tenant_id, 'm', @generation, @attempt, @task_id, @items_pending, @items_next, @items_pending, 0, 0)
  on conflict (run_id, node_no) do update
  set state = 'm', generation = excluded.generation, attempt = excluded.attempt, items_first = excluded.items_first,
    items = excluded.items, items_next = excluded.items_next, items_after = null, items_pending = excluded.items_pending,
    items_failed = 0, items_canceled = 0
)
insert into holdfast.live (
  task_id, tenant_id, lane_id, policy_id, priority, max_retries, max_losses, generation, state, run_id, node_no
)
select @task_id::bigint + i, @tenant_id, @lane_id, @policy_id, @priority, @max_retries, @max_losses, @generation, 'q', @run_id, @node_no
from generate_series(0, @items_next::int - 1) as i;

-- name: keep_items(items_firsts, generation) -> nothing
-- Mark the items with which failed nodes continue, under the lock of their run.
update holdfast.past_items p
set kept_for = @generation
where p.items_first = any(@items_firsts::bigint[]);

-- name: kept_items(run_id, node_no, generation) -> row?
-- Return the items with which a node of this generation continues, under the lock of its run.
select p.items_first, p.items
from holdfast.past_items p
where p.run_id = @run_id and p.node_no = @node_no and p.kept_for = @generation;

-- name: retry_items(run_id, node_no, tenant_id, generation, attempt, items_first, items_next) -> rows
-- Start a node again with the items that did not complete, if there are any; the others keep their outputs. It releases
-- none (see `further_items`). Requires the lock of its run.
with again as materialized (
  select count(*) as items
  from generate_series(0, @items_next::int - 1) as i
  where (
    select true
    from holdfast.attempt a
    where a.task_id = @items_first::bigint + i and a.state = 'c'
    limit 1
  ) is null
),
present as (
  delete from holdfast.past_items p
  where p.items_first = @items_first and exists (select from again where again.items > 0)
)
insert into holdfast.node (
  run_id, node_no, tenant_id, state, generation, attempt, items_first, items, items_next, items_after, items_pending,
  items_failed, items_canceled
)
select @run_id, @node_no, @tenant_id, 'm', @generation, @attempt, @items_first, @items_next, @items_next, 0, again.items, 0, 0
from again
where again.items > 0
on conflict (run_id, node_no) do update
set state = 'm', generation = excluded.generation, attempt = excluded.attempt, items_first = excluded.items_first,
  items = excluded.items, items_next = excluded.items_next, items_after = excluded.items_after,
  items_pending = excluded.items_pending, items_failed = 0, items_canceled = 0
returning items_pending;

-- name: count_items(run_ids, node_nos, ended, failed, canceled, is_canceled, is_paused) -> rows
-- nullable: items_after
-- Count ended items of nodes. As many further items may be released, but none in a canceled or paused run. The node
-- ends with its last item. Requires the locks of the runs; `state = 'm'` is the guard.
update holdfast.node n
set items_pending = n.items_pending - g.ended - dropped.items,
  items_failed = n.items_failed + g.failed, items_canceled = n.items_canceled + g.canceled,
  items_next = case
    when g.is_canceled then n.items
    when g.is_paused or n.items_after is not null then n.items_next
    else least(n.items, n.items_next + g.ended)
  end,
  items_after = case when not g.is_canceled then n.items_after end,
  state = case
    when n.items_pending - g.ended - dropped.items > 0 then 'm'
    when n.items_failed + g.failed > 0 then 'f'
    when n.items_canceled + g.canceled > 0 or g.is_canceled then 'x'
    else 'c'
  end
from unnest(@run_ids::bigint[], @node_nos::int[], @ended::int[], @failed::int[], @canceled::int[], @is_canceled::boolean[], @is_paused::boolean[])
  as g (run_id, node_no, ended, failed, canceled, is_canceled, is_paused)
join holdfast.node was on was.run_id = g.run_id and was.node_no = g.node_no
cross join lateral (
  select case
    when not g.is_canceled then 0
    when was.items_after is null then was.items - was.items_next
    else (
      select count(*)::int
      from generate_series(was.items_after, was.items - 1) as i
      where (
        select true
        from holdfast.attempt a
        where a.task_id = was.items_first + i and a.state = 'c'
        limit 1
      ) is null
    )
  end as items
) dropped
where n.run_id = g.run_id and n.node_no = g.node_no and n.run_id = any(@run_ids::bigint[]) and n.state = 'm'
returning n.run_id, n.node_no, n.state::text as state, n.items_first, n.items_next, n.items_after,
  was.items_next as was_next, n.generation, g.is_canceled, g.is_paused, n.items;

-- name: further_items(run_id, node_no, limit, tenant_id, lane_id, policy_id, priority, max_retries, max_losses,
--   scan_ahead) -> row?
-- Release the next items of one node that did not complete, as far as there is capacity: @limit may be live at once. Reads
-- as many items as there is capacity for plus @scan_ahead, however many follow; the node stores where to continue. Returns how
-- many were released, and whether there is capacity for items that were not read. Attempts count on. Requires the lock
-- of the run; `state = 'm'` is the guard.
with node as materialized (
  select n.*, coalesce(n.items_after, n.items_next) as first
  from holdfast.node n
  where n.run_id = @run_id and n.node_no = @node_no and n.state = 'm'
),
room as materialized (
  select @limit::int - count(t.task_id) as tasks
  from node
  cross join lateral (
    select t.task_id
    from holdfast.live t
    where t.task_id between node.items_first and node.items_first + node.items - 1
    limit @limit
  ) t
),
edge as materialized (
  select least(node.items, node.first + room.tasks + @scan_ahead::int)::int as next, node.items
  from node
  cross join room
),
further as materialized (
  select i, node.items_first + i as task_id,
    greatest(
      (select max(f.attempt) from holdfast.failure f where f.task_id = node.items_first + i),
      (select max(a.attempt) from holdfast.attempt a where a.task_id = node.items_first + i),
      0
    ) as attempt
  from node
  cross join edge
  cross join lateral generate_series(node.first, edge.next - 1) as i
  where (
    select true
    from holdfast.attempt a
    where a.task_id = node.items_first + i and a.state = 'c'
    limit 1
  ) is null
  order by i
  limit (select room.tasks from room)
),
went as materialized (
  select count(*) as items, count(*) < (select room.tasks from room) as has_room, max(i) + 1 as next
  from further
),
updated as (
  update holdfast.node n
  set items_next = case when n.items_after is null then g.next else n.items_next end,
    items_after = case when n.items_after is not null then g.next end
  from (select case when went.has_room then edge.next else went.next end as next from went cross join edge) g
  where n.run_id = @run_id and n.node_no = @node_no and n.state = 'm' and g.next is not null
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select @tenant_id::int, 'task.revived', array_agg(task_id), array_agg(attempt)
  from further
  where attempt > 0
  having count(*) > 0
),
released as (
  insert into holdfast.live (
    task_id, tenant_id, lane_id, policy_id, priority, max_retries, max_losses, attempt, generation, state, run_id, node_no
  )
  select further.task_id, @tenant_id, @lane_id, @policy_id, @priority, @max_retries, @max_losses, further.attempt, node.generation, 'q', @run_id, @node_no
  from further
  cross join node
  order by further.task_id
)
select went.items, went.has_room and edge.next < edge.items as has_more
from went
cross join edge;

-- name: unreleased_items(run_id) -> rows
-- Return the nodes of a run that have unreleased items, under its lock.
select n.node_no
from holdfast.node n
where n.run_id = @run_id and n.state = 'm' and coalesce(n.items_after, n.items_next) < n.items
order by n.node_no;

-- name: stalled_items(limit, offset) -> rows
-- Return open re-driven runs with stalled items: none is live and not all were released, because the last one was ended
-- by a worker that does not know `items_after`.
select r.run_id
from holdfast.run r
where r.state = 'o' and r.generation > 1 and r.paused_at is null and r.canceled_at is null
  and (
    select true
    from holdfast.node n
    where n.run_id = r.run_id and n.state = 'm' and n.items_after < n.items
      and not exists (
        select from holdfast.live t where t.task_id between n.items_first and n.items_first + n.items - 1
      )
    limit 1
  )
order by r.run_id
limit @limit
offset @offset;

-- name: release_items(task_ids, tenant_ids, lane_ids, policy_ids, priorities, max_retries, max_losses, generations,
--   run_ids, node_nos) -> nothing
-- Insert further items of nodes as tasks, under the locks of the runs.
insert into holdfast.live (
  task_id, tenant_id, lane_id, policy_id, priority, max_retries, max_losses, generation, state, run_id, node_no
)
select g.task_id, g.tenant_id, g.lane_id, g.policy_id, g.priority, g.max_retries, g.max_losses, g.generation, 'q',
  g.run_id, g.node_no
from unnest(
  @task_ids::bigint[], @tenant_ids::int[], @lane_ids::int[], @policy_ids::int[], @priorities::smallint[], @max_retries::smallint[], @max_losses::smallint[], @generations::smallint[],
  @run_ids::bigint[], @node_nos::int[]
) as g (task_id, tenant_id, lane_id, policy_id, priority, max_retries, max_losses, generation, run_id, node_no);

-- name: take_span(count) -> value
-- Reserve a span of consecutive ids.
select holdfast.take_span(@count);

-- name: node_items(run_ids, node_nos) -> rows
-- Return the id of the first item of some nodes.
select n.run_id, n.node_no, n.items_first
from unnest(@run_ids::bigint[], @node_nos::int[]) as g (run_id, node_no)
join holdfast.node n on n.run_id = g.run_id and n.node_no = g.node_no
where n.run_id = any(@run_ids::bigint[]) and n.items_first is not null;

-- name: begin_child(run_id, node_no, tenant_id, generation, attempt, child_run_id) -> nothing
-- Start a node as a run of another flow. Its attempts count on. Requires the lock of its run.
insert into holdfast.node (run_id, node_no, tenant_id, state, generation, attempt, child_run_id)
values (@run_id, @node_no, @tenant_id, 's', @generation, @attempt, @child_run_id)
on conflict (run_id, node_no) do update
set state = 's', generation = excluded.generation, attempt = excluded.attempt, child_run_id = excluded.child_run_id;

-- name: begin_wait(run_id, node_no, tenant_id, generation, attempt, wait_key, seconds?) -> nothing
-- Start a node as a wait for an event. Its attempts count on. Requires the lock of its run.
insert into holdfast.node (run_id, node_no, tenant_id, state, generation, attempt, wait_key, deadline)
values (@run_id, @node_no, @tenant_id, 'w', @generation, @attempt, @wait_key, holdfast.instant() + make_interval(secs => @seconds::double precision))
on conflict (run_id, node_no) do update
set state = 'w', generation = excluded.generation, attempt = excluded.attempt, wait_key = excluded.wait_key,
  deadline = excluded.deadline, signal_id = null;

-- name: end_taskless_node(run_id, node_no, tenant_id, state, generation, attempt, output?, signal_id?, texts) -> row?
-- End a node that ran no task of its own: a wait that was answered or timed out, a child run that ended, items that
-- could not begin. Requires the lock of its run; the state that it leaves is the guard.
insert into holdfast.node (run_id, node_no, tenant_id, state, generation, attempt, output, signal_id)
values (@run_id, @node_no, @tenant_id, @state::text::"char", @generation, @attempt, @output, @signal_id)
on conflict (run_id, node_no) do update
set state = excluded.state, generation = excluded.generation, output = excluded.output, signal_id = excluded.signal_id,
  attempt = excluded.attempt
where holdfast.node.state::text = any(@texts::text[])
returning run_id;

-- name: record_node_failure(task_id, last_attempt, tenant_id, generation, code, message, reason, sentence) -> value
-- Record the failure of a node without a task: one attempt that began and ended here, numbered after all earlier ones.
-- The number that the node stores is a lower bound. Requires the lock of its run.
insert into holdfast.failure (
  task_id, attempt, tenant_id, generation, state, lease_token, started_at, ended_at, code, type, message, decision,
  reason, rule, sentence
)
select @task_id, 1 + greatest(@last_attempt::int, max(f.attempt)), @tenant_id, @generation, 'f', gen_random_uuid(), holdfast.instant(),
  holdfast.instant(), @code, '', @message, 'stop', @reason, '', @sentence
from holdfast.failure f
where f.task_id = @task_id
returning attempt;

-- name: unanswered_children(limit, offset) -> rows
-- Return child runs whose end was not applied to their parent yet.
select r.run_id, r.parent_run_id, r.tenant_id
from holdfast.run r
where r.parent_run_id is not null and r.state <> 'o' and not r.is_answered
order by r.run_id
limit @limit
offset @offset;

-- name: answer_child(child_id) -> row?
-- Mark the end of a run as applied to its parent, once.
update holdfast.run r
set is_answered = true
where r.run_id = @child_id and r.state <> 'o' and not r.is_answered
returning r.state::text as state, r.parent_run_id, r.parent_node, r.snapshot_id, r.is_replaced;

-- name: waiting_child(parent_id, node_no, child_id) -> row?
-- Return the node that waits for a child run, if it still does, under the lock of its run.
select n.generation, n.attempt
from holdfast.node n
where n.run_id = @parent_id and n.node_no = @node_no and n.state = 's' and n.child_run_id = @child_id;

-- name: failed_for_child(parent_id, node_no, child_id) -> row?
-- Return the node that failed because of a child run, if it still refers to it, under the lock of its run.
select n.node_no
from holdfast.node n
where n.run_id = @parent_id and n.node_no = @node_no and n.state = 'f' and n.child_run_id = @child_id;

-- name: keep_children(run_ids, generation) -> nothing
-- Mark the child runs with which failed nodes continue: their failed nodes are to run again, and their old end is not
-- applied. Requires the lock of the parent, which has the smallest id.
with locked as materialized (
  select c.run_id
  from holdfast.run c
  where c.run_id = any(@run_ids::bigint[])
  order by c.run_id
  for no key update of c
)
update holdfast.run c
set kept_for = @generation, is_wanted = c.state = 'f', is_answered = c.is_answered or c.state = 'f'
where c.run_id = any(array(select run_id from locked))
returning c.run_id;

-- name: replace_children(run_ids) -> rows
-- Mark child runs that reset nodes will replace, and their descendants: no node waits for them any more. Requires the
-- lock of the parent, which has the smallest id.
with recursive below as (
  select c.run_id
  from holdfast.run c
  where c.run_id = any(@run_ids::bigint[])
  union
  select c.run_id
  from below
  join holdfast.run c on c.parent_run_id = below.run_id
),
locked as materialized (
  select c.run_id
  from holdfast.run c
  where c.run_id = any(array(select run_id from below))
  order by c.run_id
  for no key update of c
)
update holdfast.run c
set is_replaced = true, is_wanted = false
where c.run_id = any(array(select run_id from locked))
returning c.run_id;

-- name: tasks_below(run_ids) -> rows
-- Return the tasks of some runs and of their descendants, as spans of node ids and of item ids.
with recursive below as (
  select c.run_id, c.nodes
  from holdfast.run c
  where c.run_id = any(@run_ids::bigint[])
  union
  select c.run_id, c.nodes
  from below
  join holdfast.run c on c.parent_run_id = below.run_id
)
select below.run_id + 1 as first_id, below.run_id + below.nodes as last_id
from below
union all
select n.items_first, n.items_first + n.items - 1
from below
join holdfast.node n on n.run_id = below.run_id and n.items > 0;

-- name: kept_child(run_id, node_no, generation) -> row?
-- Return the child run with which a node of this generation continues, under the lock of the node's run.
select c.run_id, c.state::text as state, c.snapshot_id, c.is_wanted
from holdfast.run c
where c.parent_run_id = @run_id and c.parent_node = @node_no and c.kept_for = @generation and c.state <> 'x' and not c.is_replaced
order by c.run_id desc
limit 1;

-- name: wanted_children(limit, offset) -> rows
-- Return child runs whose failed nodes are to run again, because their parent node continues with them.
select c.run_id, c.tenant_id, c.parent_run_id
from holdfast.run c
where c.is_wanted
order by c.run_id
limit @limit
offset @offset;

-- name: unwant_child(child_id) -> nothing
-- Give up the re-drive of a child run that cannot run again, so that its end is applied to its node.
update holdfast.run c
set is_wanted = false, is_answered = false
where c.run_id = @child_id and c.is_wanted
returning c.run_id;
