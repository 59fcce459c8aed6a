-- name: claim_run_key
-- Take an idempotency key for a run that is about to start, and the span of ids for it. No row if the key stands for
-- something already: who waited for another to start it sees that one now.
insert into holdfast.idempotency (tenant_id, key, task_id, digest)
values ($1, $2, holdfast.take_span($3::bigint + 1),
  sha256(convert_to($4 || E'\n' || convert_from($5::bytea, 'utf8')::jsonb::text, 'utf8')))
on conflict (tenant_id, key) do nothing
returning task_id;

-- name: start_runs
-- Start runs of one snapshot, each with its own input: a span of ids each, taken here or before, and the nodes that
-- wait for nobody as queued tasks. Answers the ids in the order of the inputs.
with span as materialized (
  select coalesce($18::bigint, holdfast.take_span(cardinality($4::bytea[]) * ($3::bigint + 1))) as first_id
),
fresh as (
  insert into holdfast.run (
    run_id, tenant_id, snapshot_id, nodes, pending, active, input, max_active, priority, tags, key, parent_run_id,
    parent_node, original_run_id
  )
  select span.first_id + (g.n - 1) * ($3::bigint + 1), $1, $2, $3, $3, cardinality($11::int[]), g.input, $5, $6,
    $7::text[], $8::text, $9::bigint, $10::int, $17::bigint
  from span
  cross join unnest($4::bytea[]) with ordinality as g (input, n)
  returning run_id
),
released as (
  insert into holdfast.live (
    task_id, tenant_id, lane_id, policy_id, priority, max_retries, max_losses, state, run_id, node_no
  )
  select fresh.run_id + 1 + r.node_no, $1, r.lane_id, r.policy_id, r.priority, r.max_retries, r.max_losses, 'q',
    fresh.run_id, r.node_no
  from fresh
  cross join unnest($11::int[], $12::int[], $13::int[], $14::smallint[], $15::smallint[], $16::smallint[])
    as r (node_no, lane_id, policy_id, priority, max_retries, max_losses)
  returning task_id
),
told as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select $1, 'execution.started', array_agg(run_id), array_agg(1)
  from fresh
  union all
  select $1, 'task.queued', array_agg(task_id), array_agg(0)
  from released
  having count(*) > 0
)
select array_agg(run_id order by run_id)
from fresh;

-- name: lock_runs
-- Become the one who may change the graph of these runs. Everybody locks in this order, after task rows and before
-- node rows, so nobody waits in a circle. A run that is over is not found.
select r.run_id, r.snapshot_id, r.tenant_id, r.generation, r.pending, r.active, r.failed, r.nodes, r.max_active,
  r.priority, r.paused_at is not null as is_paused, r.canceled_at is not null as is_canceled
from holdfast.run r
where r.run_id = any($1::bigint[]) and r.state = 'o'
order by r.run_id
for no key update of r;

-- name: read_nodes
-- What is remembered of some nodes. Under the locks of their runs.
select n.run_id, n.node_no, n.state::text as state, n.pending, n.succeeded, n.skipped, n.failed, n.attempt, n.generation
from unnest($1::bigint[], $2::int[]) as g (run_id, node_no)
join holdfast.node n on n.run_id = g.run_id and n.node_no = g.node_no
where n.run_id = any($1::bigint[]);

-- name: advance_runs
-- Write what followed from nodes that ended: what is remembered of nodes, the tasks that go (in spans of neighbours that
-- are alike), the counters of runs and, where nothing is left, how they ended; and tell it, runs after their nodes. Under
-- the locks of the runs; `state = 'o'` is the verdict's guard: it is written once per generation.
with nodes as (
  insert into holdfast.node (
    run_id, node_no, tenant_id, state, pending, succeeded, skipped, failed, attempt, generation
  )
  select g.run_id, g.node_no, g.tenant_id, g.state::"char", g.pending, g.succeeded, g.skipped, g.failed, g.attempt,
    g.generation
  from unnest(
    $1::bigint[], $2::int[], $3::int[], $4::text[], $5::int[], $6::int[], $7::int[], $8::int[], $9::int[], $10::smallint[]
  ) as g (run_id, node_no, tenant_id, state, pending, succeeded, skipped, failed, attempt, generation)
  on conflict (run_id, node_no) do update
  set state = excluded.state, pending = excluded.pending, succeeded = excluded.succeeded, skipped = excluded.skipped,
    failed = excluded.failed, attempt = excluded.attempt, generation = excluded.generation
),
spans as materialized (
  select *
  from unnest(
    $11::bigint[], $12::int[], $13::int[], $14::int[], $15::int[], $16::int[], $17::smallint[], $18::smallint[],
    $19::smallint[], $20::int[], $21::smallint[]
  ) as g (
    run_id, first_no, last_no, tenant_id, lane_id, policy_id, priority, max_retries, max_losses, attempt, generation
  )
),
released as (
  insert into holdfast.live (
    task_id, tenant_id, lane_id, policy_id, priority, max_retries, max_losses, attempt, generation, state, run_id, node_no
  )
  select g.run_id + 1 + n.node_no, g.tenant_id, g.lane_id, g.policy_id, g.priority, g.max_retries, g.max_losses,
    g.attempt, g.generation, 'q', g.run_id, n.node_no
  from spans g
  cross join lateral generate_series(g.first_no, g.last_no) as n (node_no)
),
counted as (
  update holdfast.run r
  set pending = r.pending - g.ended, active = r.active - g.left_active + g.released, failed = r.failed + g.failed,
    state = case
      when r.pending > g.ended then r.state
      when r.canceled_at is not null then 'x'
      when r.failed + g.failed > 0 then 'f'
      else 'c'
    end,
    ended_at = case when r.pending <= g.ended then holdfast.instant() end
  from unnest($22::bigint[], $23::int[], $24::int[], $25::int[], $26::int[])
    as g (run_id, ended, left_active, released, failed)
  where r.run_id = g.run_id and r.run_id = any($22::bigint[]) and r.state = 'o'
  returning r.run_id, r.tenant_id, r.generation, r.state, r.is_awaited, r.parent_run_id
),
told as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select tenant_id, kind, array_agg(id), array_agg(n)
  from (
    select tenant_id, run_id as id, generation::int as n,
      case state when 'c' then 'execution.completed' when 'f' then 'execution.failed' else 'execution.canceled' end as kind
    from counted
    where state <> 'o'
    union all
    select g.tenant_id, g.run_id + 1 + n.node_no, g.attempt, 'task.queued'
    from spans g
    cross join lateral generate_series(g.first_no, g.last_no) as n (node_no)
    union all
    select tenant_id, task_id, attempt, kind
    from unnest($27::int[], $28::text[], $29::bigint[], $30::int[]) as g (tenant_id, kind, task_id, attempt)
  ) as happened
  group by tenant_id, kind
  order by kind like 'execution.%', kind
)
select array_agg(run_id) filter (where is_awaited) as awaited, array_agg(run_id) filter (where parent_run_id is not null) as children
from counted
where state <> 'o';

-- name: read_runs
-- What runs were started with, and what they run.
select r.run_id, r.snapshot_id, r.generation, r.input, r.tags
from holdfast.run r
where r.run_id = any($1::bigint[]);

-- name: read_outputs
-- What tasks returned that completed, in every generation in which they did.
select a.task_id, a.generation, a.output
from holdfast.attempt a
where a.task_id = any($1::bigint[]) and a.state = 'c';

-- name: read_special_outputs
-- What nodes returned that ran no task of their own, or one per item: what was stored for them, or the outputs of all
-- items in order. A node that is not among the rows did not complete.
select n.run_id, n.node_no, n.output,
  case when n.items > 0 then array(
    select a.output
    from holdfast.attempt a
    where a.task_id between n.items_first and n.items_first + n.items - 1 and a.state = 'c'
    order by a.task_id
  ) end
from unnest($1::bigint[], $2::int[]) as g (run_id, node_no)
join holdfast.node n on n.run_id = g.run_id and n.node_no = g.node_no
where n.state = 'c' and n.run_id = any($1::bigint[]);

-- name: run_snapshots
-- Which snapshot each run runs.
select run_id, snapshot_id
from holdfast.run
where run_id = any($1::bigint[]);

-- name: lock_run
-- One run, open or over, under its lock.
select r.run_id, r.snapshot_id, r.tenant_id, r.generation, r.pending, r.active, r.failed, r.nodes, r.max_active,
  r.priority, r.paused_at is not null as is_paused, r.canceled_at is not null as is_canceled, r.state::text as state
from holdfast.run r
where r.run_id = $1 and r.tenant_id = $2
for no key update of r;

-- name: held_nodes
-- Nodes that a run held back, in order. Under its lock.
select n.node_no, n.state::text as state, n.pending, n.succeeded, n.skipped, n.failed, n.attempt, n.generation
from holdfast.node n
where n.run_id = $1 and n.state = 'h'
order by n.node_no
limit $2;

-- name: pause_run
-- Release nothing more of an open run. What is queued or runs goes on.
with paused as (
  update holdfast.run r
  set paused_at = holdfast.instant(), paused_by = $3, paused_reason = $4
  where r.run_id = $1 and r.tenant_id = $2 and r.state = 'o' and r.paused_at is null and r.canceled_at is null
  returning r.run_id, r.tenant_id, r.generation
),
told as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'execution.paused', array[run_id], array[generation::int],
    jsonb_build_object('actor', $3::text, 'reason', $4::text)
  from paused
)
select run_id
from paused;

-- name: resume_run
-- Let an open run go on. Under its lock.
with resumed as (
  update holdfast.run r
  set paused_at = null, paused_by = null, paused_reason = null
  where r.run_id = $1 and r.state = 'o' and r.paused_at is not null
  returning r.run_id, r.tenant_id, r.generation
),
told as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'execution.resumed', array[run_id], array[generation::int],
    jsonb_build_object('actor', $2::text, 'reason', $3::text)
  from resumed
)
select run_id
from resumed;

-- name: cancel_run
-- An open run is to end: what is blocked is over at once, what is active is counted down as it stops; with nothing active
-- it is over. Under its lock.
with ended as (
  update holdfast.run r
  set canceled_at = holdfast.instant(), canceled_by = $2, cancel_reason = $3, paused_at = null, paused_by = null,
    paused_reason = null, pending = r.active,
    state = case when r.active = 0 then 'x' else r.state end,
    ended_at = case when r.active = 0 then holdfast.instant() end
  where r.run_id = $1 and r.state = 'o' and r.canceled_at is null
  returning r.run_id, r.tenant_id, r.generation, r.state, r.active, r.nodes, r.is_awaited, r.parent_run_id
),
told as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, case state when 'x' then 'execution.canceled' else 'execution.canceling' end, array[run_id],
    array[generation::int], jsonb_build_object('actor', $2::text, 'reason', $3::text)
  from ended
)
select state::text as state, active, nodes, is_awaited, parent_run_id is not null as has_parent
from ended;

-- name: cancel_waits
-- Nodes of a canceled run that wait for an event do so no longer. Under its lock.
update holdfast.node n
set state = 'x'
where n.run_id = $1 and n.state = 'w'
returning n.node_no;

-- name: children_to_cancel
-- Open runs that answer nodes of canceled runs and were not told yet.
select c.run_id, c.tenant_id, r.canceled_by, r.cancel_reason
from holdfast.run r
join holdfast.run c on c.parent_run_id = r.run_id and c.state = 'o' and c.canceled_at is null
where r.state = 'o' and r.canceled_at is not null
limit $1;

-- name: canceling_runs
-- Open runs that somebody canceled, with what of them still has to be told.
select r.run_id, r.tenant_id, r.nodes, r.canceled_by, r.cancel_reason
from holdfast.run r
where r.state = 'o' and r.canceled_at is not null
order by r.run_id
limit $1;

-- name: run_tasks_to_cancel
-- Tasks of a run that were not asked to stop yet: its nodes, and the items of its nodes.
select t.task_id
from holdfast.live t
where t.task_id between $1::bigint + 1 and $1::bigint + $2::int and t.cancel_at is null
union all
select t.task_id
from holdfast.node n
join holdfast.live t on t.task_id between n.items_first and n.items_first + n.items - 1 and t.cancel_at is null
where n.run_id = $1 and n.state = 'm'
limit $3;

-- name: node_states
-- Where each node of a run stands (see holdfast.nodes_of).
select n.*
from holdfast.run r
cross join lateral holdfast.nodes_of(r.run_id) n
where r.run_id = $1 and r.tenant_id = $2
order by n.node_no;

-- name: last_attempts
-- The number of the last attempt of some nodes: later ones go on counting. Under the lock of the run.
select g.node_no, greatest(max(a.attempt), max(f.attempt), max(e.attempt), 0) as attempt
from unnest($2::int[]) as g (node_no)
left join holdfast.attempt a on a.task_id = $1::bigint + 1 + g.node_no
left join holdfast.failure f on f.task_id = $1::bigint + 1 + g.node_no
left join holdfast.ended e on e.task_id = $1::bigint + 1 + g.node_no
group by g.node_no;

-- name: reopen_run
-- Begin the next generation of a run: the nodes named lose their ends, and count as not over again; items they had keep
-- their place. Under its lock.
with cleared as (
  delete from holdfast.ended e
  where e.run_id = $1 and e.node_no = any($2::int[])
),
forgotten as (
  delete from holdfast.node n
  where n.run_id = $1 and n.node_no = any($2::int[])
  returning n.*
),
remembered as (
  insert into holdfast.past_items (items_first, run_id, tenant_id, items, node_no, generation)
  select items_first, run_id, tenant_id, items, node_no, generation
  from forgotten
  where items > 0
),
told as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select r.tenant_id, 'execution.redriven', array[r.run_id], array[r.generation + 1],
    jsonb_build_object('actor', $5::text, 'reason', $6::text, 'nodes', $2::int[])
  from holdfast.run r
  where r.run_id = $1 and r.state in ('o', 'c', 'f') and r.generation = $7
  union all
  select r.tenant_id, 'task.revived', array(select $1::bigint + 1 + one from unnest($2::int[]) as one), $8::int[],
    jsonb_build_object('actor', $5::text, 'reason', $6::text)
  from holdfast.run r
  where r.run_id = $1 and r.state in ('o', 'c', 'f') and r.generation = $7
)
update holdfast.run r
set generation = r.generation + 1, state = 'o', ended_at = null, pending = r.pending + $3, failed = r.failed - $4,
  paused_at = null, paused_by = null, paused_reason = null, is_answered = false
where r.run_id = $1 and r.state in ('o', 'c', 'f') and r.generation = $7 and r.canceled_at is null
returning r.run_id, r.snapshot_id, r.tenant_id, r.generation, r.pending, r.active, r.failed, r.nodes, r.max_active,
  r.priority, false as is_paused, false as is_canceled;

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
-- Release a node as a run of another flow. Under the lock of its run.
insert into holdfast.node (run_id, node_no, tenant_id, state, generation, child_run_id)
values ($1, $2, $3, 's', $4, $5)
on conflict (run_id, node_no) do update
set state = 's', generation = excluded.generation, child_run_id = excluded.child_run_id;

-- name: begin_wait
-- Release a node as a wait for an event. Under the lock of its run.
insert into holdfast.node (run_id, node_no, tenant_id, state, generation, wait_key, deadline)
values ($1, $2, $3, 'w', $4, $5, holdfast.instant() + make_interval(secs => $6::double precision))
on conflict (run_id, node_no) do update
set state = 'w', generation = excluded.generation, wait_key = excluded.wait_key, deadline = excluded.deadline,
  signal_id = null;

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

-- name: keep_counts
-- The counters of nodes whose state was written when they began or ended without a task. Under the locks of their runs.
update holdfast.node n
set pending = g.pending, succeeded = g.succeeded, skipped = g.skipped, failed = g.failed
from unnest($1::bigint[], $2::int[], $3::int[], $4::int[], $5::int[], $6::int[])
  as g (run_id, node_no, pending, succeeded, skipped, failed)
where n.run_id = g.run_id and n.node_no = g.node_no and n.run_id = any($1::bigint[]);

-- name: list_runs
-- A page of runs, newest first, before an id. Each branch reads at most a page by an index of its own; one whose states
-- were not asked for reads nothing. Names and the first failure are fetched for the runs shown.
with page as materialized (
  select *
  from (
    (
      select r.run_id
      from holdfast.run r
      where ($2::text[] is null or $2 && array['queued', 'running', 'paused', 'blocked'])
        and r.state = 'o' and r.tenant_id = $1 and r.run_id < $5
        and ($2::text[] is null or (
          ($2 && array['queued', 'running'] or r.failed > 0 and 'blocked' = any($2)
            or r.paused_at is not null and 'paused' = any($2))
          and holdfast.run_state(r) = any($2)
        ))
        and ($3::int[] is null or r.snapshot_id = any($3))
        and ($4::text is null or $4 = any(r.tags))
      order by r.run_id desc
      limit $6
    )
    union all
    (
      select r.run_id
      from holdfast.run r
      where ($2::text[] is null or $2 && array['failed', 'canceled'])
        and r.state in ('f', 'x') and r.tenant_id = $1 and r.run_id < $5
        and ($2::text[] is null or case r.state when 'f' then 'failed' else 'canceled' end = any($2))
        and ($3::int[] is null or r.snapshot_id = any($3))
        and ($4::text is null or $4 = any(r.tags))
      order by r.run_id desc
      limit $6
    )
    union all
    (
      select r.run_id
      from holdfast.run r
      where ($2::text[] is null or 'completed' = any($2))
        and r.state = 'c' and r.tenant_id = $1 and r.run_id < $5
        and ($3::int[] is null or r.snapshot_id = any($3))
        and ($4::text is null or $4 = any(r.tags))
      order by r.run_id desc
      limit $6
    )
  ) found
  order by run_id desc
  limit $6
)
select r.run_id::text as run_id, f.name as flow, f.version, holdfast.run_state(r) as state, r.nodes, r.pending, r.active,
  r.failed, r.generation, r.created_at, r.ended_at, r.key, coalesce(r.tags, '{}') as tags,
  r.parent_run_id::text as parent_run_id, r.original_run_id::text as original_run_id, holdfast.instant() as at,
  f.definition -> 'nodes' -> broken.node_no ->> 'name' as failed_node, x.code, x.type, x.message
from page
join holdfast.run r on r.run_id = page.run_id
join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
join holdfast.flow f on f.flow_id = s.flow_id
left join lateral (
  select b.node_no, b.task_id
  from (
    (select e.node_no, e.task_id from holdfast.ended e where e.run_id = r.run_id and e.state = 'f' order by e.node_no limit 1)
    union all
    (
      select n.node_no, n.run_id + 1 + n.node_no
      from holdfast.node n
      where n.run_id = r.run_id and n.state = 'f'
      order by n.node_no
      limit 1
    )
  ) b
  where r.failed > 0
  limit 1
) broken on true
left join lateral (
  select x.code, x.type, x.message
  from holdfast.failure x
  where x.task_id = broken.task_id
  order by x.attempt desc
  limit 1
) x on true
order by r.run_id desc;

-- name: find_snapshots
-- The snapshots of a flow, or of one version of it, newest first.
select s.snapshot_id
from holdfast.flow f
join holdfast.snapshot s on s.flow_id = f.flow_id
where f.tenant_id = $1 and f.name = $2 and ($3::int is null or f.version = $3)
order by f.version desc, s.snapshot_id desc;

-- name: show_run
-- One run in full, without its nodes.
select r.run_id, r.snapshot_id, f.name as flow, f.version, holdfast.run_state(r) as state, r.nodes, r.pending, r.active,
  r.failed, r.generation, r.created_at, r.ended_at, r.key, r.tags, r.max_active, r.priority, r.paused_at, r.paused_by,
  r.paused_reason, r.canceled_at, r.canceled_by, r.cancel_reason, r.parent_run_id, r.parent_node, r.original_run_id,
  r.input, holdfast.instant() as at
from holdfast.run r
join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
join holdfast.flow f on f.flow_id = s.flow_id
where r.run_id = $1 and r.tenant_id = $2;

-- name: last_failures
-- How nodes last failed, with the last failure of any item for those that have items.
select g.node_no, x.task_id, x.attempt, x.state::text as state, x.code, x.type, x.message, x.reason, x.rule, x.sentence,
  x.ended_at
from unnest($2::int[]) as g (node_no)
left join holdfast.node n on n.run_id = $1 and n.node_no = g.node_no
cross join lateral (
  select y.*
  from (
    (select f.* from holdfast.failure f where f.task_id = $1::bigint + 1 + g.node_no order by f.attempt desc limit 1)
    union all
    (
      select f.*
      from holdfast.failure f
      where f.task_id between n.items_first and n.items_first + n.items - 1
      order by f.ended_at desc
      limit 1
    )
  ) y
  order by y.ended_at desc
  limit 1
) x;

-- name: waiting_counts
-- What of a run is held back, and which task of it waits first.
select (select count(*)::int from holdfast.node n where n.run_id = $1 and n.state = 'h') as held,
  (
    select min(t.task_id)
    from holdfast.live t
    where t.task_id > $1::bigint and t.task_id <= $1::bigint + $2::int and t.state <> 'r'
  ) as first_waiting;

-- name: read_run_for_copy
-- What a copy of a run begins with.
select r.snapshot_id, r.input, r.tags, r.max_active, r.priority
from holdfast.run r
where r.run_id = $1 and r.tenant_id = $2;
