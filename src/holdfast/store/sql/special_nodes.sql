-- name: begin_items
-- Release a node as items: each a task of its own, as many at once as the node allows. Under the lock of its run.
with node as (
  insert into holdfast.node (
    run_id, node_no, tenant_id, state, generation, items_first, items, items_next, items_pending, items_failed,
    items_canceled
  )
  values ($1, $2, $3, 'm', $4, $5, $6, $7, $6, 0, 0)
  on conflict (run_id, node_no) do update
  set state = 'm', generation = excluded.generation, items_first = excluded.items_first, items = excluded.items,
    items_next = excluded.items_next, items_pending = excluded.items_pending, items_failed = 0, items_canceled = 0
)
insert into holdfast.live (
  task_id, tenant_id, lane_id, policy_id, priority, max_retries, max_losses, generation, state, run_id, node_no
)
select $5::bigint + i, $3, $8, $9, $10, $11, $12, $4, 'q', $1, $2
from generate_series(0, $7::int - 1) as i;

-- name: retry_items
-- Release a node again as the items that did not complete; the others keep their outputs. Under the lock of its run.
with again as materialized (
  select $5::bigint + i as task_id, i,
    coalesce((select max(f.attempt) from holdfast.failure f where f.task_id = $5::bigint + i), 0) as attempt
  from generate_series(0, $6::int - 1) as i
  where not exists (select from holdfast.attempt a where a.task_id = $5::bigint + i and a.state = 'c')
),
present as (
  delete from holdfast.past_items p
  where p.items_first = $5
),
node as (
  insert into holdfast.node (
    run_id, node_no, tenant_id, state, generation, items_first, items, items_next, items_pending, items_failed,
    items_canceled
  )
  select $1, $2, $3, 'm', $4, $5, $6, $6, count(*), 0, 0
  from again
  on conflict (run_id, node_no) do update
  set state = 'm', generation = excluded.generation, items_first = excluded.items_first, items = excluded.items,
    items_next = excluded.items_next, items_pending = excluded.items_pending, items_failed = 0, items_canceled = 0
),
told as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select $3, 'task.revived', array_agg(task_id), array_agg(attempt)
  from again
  having count(*) > 0
)
insert into holdfast.live (
  task_id, tenant_id, lane_id, policy_id, priority, max_retries, max_losses, attempt, generation, state, run_id, node_no
)
select again.task_id, $3, $7, $8, $9, $10, $11, again.attempt, $4, 'q', $1, $2
from again
order by again.task_id
returning task_id;

-- name: count_items
-- Items of nodes ended; as many more may go, none in a canceled run. The node is over with its last one. Under the locks
-- of the runs; `state = 'm'` is the guard.
update holdfast.node n
set items_pending = n.items_pending - g.ended - case when g.is_canceled then n.items - n.items_next else 0 end,
  items_failed = n.items_failed + g.failed, items_canceled = n.items_canceled + g.canceled,
  items_next = case when g.is_canceled then n.items else least(n.items, n.items_next + g.ended) end,
  state = case
    when n.items_pending - g.ended - case when g.is_canceled then n.items - n.items_next else 0 end > 0 then 'm'
    when n.items_failed + g.failed > 0 then 'f'
    when n.items_canceled + g.canceled > 0 or g.is_canceled then 'x'
    else 'c'
  end
from unnest($1::bigint[], $2::int[], $3::int[], $4::int[], $5::int[], $6::boolean[])
  as g (run_id, node_no, ended, failed, canceled, is_canceled)
join holdfast.node was on was.run_id = g.run_id and was.node_no = g.node_no
where n.run_id = g.run_id and n.node_no = g.node_no and n.run_id = any($1::bigint[]) and n.state = 'm'
returning n.run_id, n.node_no, n.state::text as state, n.items_first, n.items_next,
  was.items_next as was_next, n.generation, g.is_canceled;

-- name: release_items
-- Further items of nodes become tasks. Under the locks of the runs.
insert into holdfast.live (
  task_id, tenant_id, lane_id, policy_id, priority, max_retries, max_losses, generation, state, run_id, node_no
)
select g.task_id, g.tenant_id, g.lane_id, g.policy_id, g.priority, g.max_retries, g.max_losses, g.generation, 'q',
  g.run_id, g.node_no
from unnest(
  $1::bigint[], $2::int[], $3::int[], $4::int[], $5::smallint[], $6::smallint[], $7::smallint[], $8::smallint[],
  $9::bigint[], $10::int[]
) as g (task_id, tenant_id, lane_id, policy_id, priority, max_retries, max_losses, generation, run_id, node_no);

-- name: take_span
-- A row of ids that nobody else has.
select holdfast.take_span($1);

-- name: node_items
-- Where the items of some nodes begin.
select n.run_id, n.node_no, n.items_first
from unnest($1::bigint[], $2::int[]) as g (run_id, node_no)
join holdfast.node n on n.run_id = g.run_id and n.node_no = g.node_no
where n.run_id = any($1::bigint[]) and n.items_first is not null;

-- name: begin_child
-- Release a node as a run of another flow. Attempts that it had before count on. Under the lock of its run.
insert into holdfast.node (run_id, node_no, tenant_id, state, generation, child_run_id, attempt)
values ($1, $2, $3, 's', $4, $5, $6)
on conflict (run_id, node_no) do update
set state = 's', generation = excluded.generation, child_run_id = excluded.child_run_id,
  attempt = greatest(holdfast.node.attempt, excluded.attempt);

-- name: begin_wait
-- Release a node as a wait for an event. Attempts that it had before count on. Under the lock of its run.
insert into holdfast.node (run_id, node_no, tenant_id, state, generation, wait_key, deadline, attempt)
values ($1, $2, $3, 'w', $4, $5, holdfast.instant() + make_interval(secs => $6::double precision), $7)
on conflict (run_id, node_no) do update
set state = 'w', generation = excluded.generation, wait_key = excluded.wait_key, deadline = excluded.deadline,
  signal_id = null, attempt = greatest(holdfast.node.attempt, excluded.attempt);

-- name: end_special
-- A node that ran no task of its own is over: a wait that was answered or ran out, a run that ended, items that could
-- not begin. Under the lock of its run; the state it leaves is the guard.
insert into holdfast.node (run_id, node_no, tenant_id, state, generation, attempt, output, signal_id)
values ($1, $2, $3, $4::text::"char", $5, $6, $7, $8)
on conflict (run_id, node_no) do update
set state = excluded.state, generation = excluded.generation, output = excluded.output, signal_id = excluded.signal_id,
  attempt = excluded.attempt
where holdfast.node.state::text = any($9::text[])
returning run_id;

-- name: tell_failure
-- The story of a node that failed without a task: one attempt that began and ended here.
insert into holdfast.failure (
  task_id, attempt, tenant_id, generation, state, lease_token, started_at, ended_at, code, type, message, decision,
  reason, rule, sentence
)
values ($1, $2, $3, $4, 'f', gen_random_uuid(), holdfast.instant(), holdfast.instant(), $5, '', $6, 'stop', $7, '', $8);

-- name: unanswered_children
-- Runs that ended and whose parent does not know yet.
select r.run_id, r.parent_run_id
from holdfast.run r
where r.parent_run_id is not null and r.state <> 'o' and not r.is_answered
order by r.run_id
limit $1;

-- name: answer_child
-- The end of a run was told to its parent, once.
update holdfast.run r
set is_answered = true
where r.run_id = $1 and r.state <> 'o' and not r.is_answered
returning r.state::text as state, r.parent_run_id, r.parent_node, r.snapshot_id;

-- name: waiting_child
-- The node that waits for a run, if it still does. Under the lock of its run.
select n.generation, n.attempt
from holdfast.node n
where n.run_id = $1 and n.node_no = $2 and n.state = 's' and n.child_run_id = $3;

-- name: send_signal
-- Keep an event from outside.
insert into holdfast.signal (tenant_id, wait_key, run_id, actor, payload)
values ($1, $2, $3, $4, $5)
returning signal_id;

-- name: approval_standing
-- How the approval of one node stands, with the newest answer to it; a node that was not let go yet has no row. Under the
-- lock of its run.
select n.state::text as state, n.generation, n.attempt, coalesce(n.deadline <= holdfast.instant(), false) as is_overdue,
  s.signal_id is not null as is_answered, s.actor, s.payload
from (values ($1::bigint, $2::int)) as g (run_id, node_no)
left join holdfast.node n on n.run_id = g.run_id and n.node_no = g.node_no
left join lateral (
  select s.signal_id, s.actor, s.payload
  from holdfast.signal s
  where s.tenant_id = $3 and s.wait_key = $4
  order by s.signal_id desc
  limit 1
) s on true;

-- name: forget_answers
-- Nodes that begin again ask again: what was answered to their approvals counted for what they were asked then. Under
-- the lock of their run, before its nodes lose their ends.
delete from holdfast.signal s
using holdfast.node n
where n.run_id = $1 and n.node_no = any($2::int[]) and n.wait_key like 'approval:%'
  and s.tenant_id = n.tenant_id and s.wait_key = n.wait_key;

-- name: answered_waits
-- Waiting nodes for which an event came since their run began, each with the oldest one that its run has not used.
select n.run_id, n.node_no, s.signal_id
from holdfast.node n
join holdfast.run r on r.run_id = n.run_id and r.state = 'o'
cross join lateral (
  select s.signal_id
  from holdfast.signal s
  where s.tenant_id = n.tenant_id and s.wait_key = n.wait_key and (s.run_id is null or s.run_id = n.run_id)
    and s.at >= r.created_at
    and not exists (select from holdfast.node u where u.run_id = n.run_id and u.signal_id = s.signal_id)
  order by s.signal_id
  limit 1
) s
where n.state = 'w' and ($1::text is null or n.wait_key = $1)
limit $2;

-- name: overdue_waits
-- Waiting nodes whose time is over.
select n.run_id, n.node_no
from holdfast.node n
where n.state = 'w' and n.deadline <= holdfast.instant()
order by n.deadline
limit $1;

-- name: read_signal
-- One event from outside.
select s.signal_id, s.actor, s.payload
from holdfast.signal s
where s.signal_id = $1;

-- name: waiting_node
-- A node that waits, if it still does. Under the lock of its run.
select n.generation, n.attempt, n.deadline <= holdfast.instant() as is_overdue
from holdfast.node n
where n.run_id = $1 and n.node_no = $2 and n.state = 'w';

-- name: forget_signals
-- Events from outside that no open run is old enough to wait for, and older than history.
delete from holdfast.signal s
where s.at < holdfast.instant() - make_interval(secs => $1::double precision * 86400)
  and not exists (select from holdfast.run r where r.state = 'o' and r.created_at <= s.at);
