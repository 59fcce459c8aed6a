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
),
told as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select $1, 'execution.started', array_agg(run_id), array_agg(1)
  from fresh
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
-- Write what followed from nodes that ended: what is remembered of nodes, the tasks that go, the counters of runs and,
-- where nothing is left, how they ended. Under the locks of the runs; `state = 'o'` is the verdict's guard: it is written
-- once per generation.
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
released as (
  insert into holdfast.live (
    task_id, tenant_id, lane_id, policy_id, priority, max_retries, max_losses, attempt, generation, state, run_id, node_no
  )
  select g.run_id + 1 + g.node_no, g.tenant_id, g.lane_id, g.policy_id, g.priority, g.max_retries, g.max_losses,
    g.attempt, g.generation, 'q', g.run_id, g.node_no
  from unnest(
    $11::bigint[], $12::int[], $13::int[], $14::int[], $15::int[], $16::smallint[], $17::smallint[], $18::smallint[],
    $19::int[], $20::smallint[]
  ) as g (run_id, node_no, tenant_id, lane_id, policy_id, priority, max_retries, max_losses, attempt, generation)
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
  from unnest($21::bigint[], $22::int[], $23::int[], $24::int[], $25::int[])
    as g (run_id, ended, left_active, released, failed)
  where r.run_id = g.run_id and r.run_id = any($21::bigint[]) and r.state = 'o'
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
    select tenant_id, run_id + 1 + node_no, 0, case state when 'k' then 'task.skipped' else 'task.upstream_failed' end
    from unnest($1::bigint[], $2::int[], $3::int[], $4::text[]) as g (run_id, node_no, tenant_id, state)
    where state in ('k', 'u')
  ) as happened
  group by tenant_id, kind
)
select array_agg(run_id) filter (where is_awaited) as awaited, array_agg(run_id) filter (where parent_run_id is not null) as children
from counted
where state <> 'o';

-- name: read_run_inputs
-- What the nodes of these runs may bind from the run itself.
select r.run_id, r.snapshot_id, r.generation, r.input, r.tags
from holdfast.run r
where r.run_id = any($1::bigint[]);

-- name: read_outputs
-- What completed nodes returned, in their present generation. A node that is not among the rows did not complete.
select g.run_id, g.node_no, a.output, a.attempt
from unnest($1::bigint[], $2::int[]) as g (run_id, node_no)
left join holdfast.node n on n.run_id = g.run_id and n.node_no = g.node_no
join holdfast.attempt a on a.task_id = g.run_id + 1 + g.node_no and a.state = 'c'
  and a.generation = coalesce(n.generation, 1)
where a.task_id = any(array(select one.run_id + 1 + one.node_no from unnest($1::bigint[], $2::int[]) as one (run_id, node_no)))
union all
select n.run_id, n.node_no, n.output, 0
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
update holdfast.run r
set paused_at = holdfast.instant(), paused_by = $3, paused_reason = $4
where r.run_id = $1 and r.tenant_id = $2 and r.state = 'o' and r.paused_at is null and r.canceled_at is null
returning r.run_id;

-- name: resume_run
-- Let an open run go on. Under its lock.
update holdfast.run r
set paused_at = null, paused_by = null, paused_reason = null
where r.run_id = $1 and r.state = 'o' and r.paused_at is not null
returning r.run_id;

-- name: cancel_run
-- An open run is to end: what is blocked is over at once, what is active is counted down as it stops. Under its lock.
with told as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select r.tenant_id, 'execution.canceling', array[r.run_id], array[r.generation::int],
    jsonb_build_object('actor', $2::text, 'reason', $3::text)
  from holdfast.run r
  where r.run_id = $1 and r.state = 'o' and r.canceled_at is null
)
update holdfast.run r
set canceled_at = holdfast.instant(), canceled_by = $2, cancel_reason = $3, paused_at = null, paused_by = null,
  paused_reason = null, pending = greatest(r.active, 1), active = greatest(r.active, 1)
where r.run_id = $1 and r.state = 'o' and r.canceled_at is null
returning r.active;

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
-- Where each node of a run stands: a live task, an end of its own, a completed attempt of its generation, or what is
-- remembered; a node of which nothing is known is blocked, or canceled with its run.
select n.node_no,
  case
    when t.state = 'r' then 'running'
    when t.state = 'w' and t.is_retrying then 'retrying'
    when t.state is not null then 'queued'
    when e.state = 'f' or m.state = 'f' then 'failed'
    when e.state = 'x' or m.state = 'x' then 'canceled'
    when a.task_id is not null or m.state = 'c' then 'completed'
    when m.state = 'k' then 'skipped'
    when m.state = 'u' then 'upstream_failed'
    when m.state in ('m', 's', 'w') then 'running'
    when r.canceled_at is not null then 'canceled'
    else 'blocked'
  end as state,
  coalesce(t.attempt, e.attempt, a.attempt, m.attempt, 0) as attempt,
  coalesce(t.generation, e.generation, a.generation, m.generation, 1) as generation,
  m.state::text as letter, m.pending, m.succeeded, m.skipped, m.failed, m.items, m.items_pending, m.items_failed,
  m.deadline, m.wait_key, coalesce(t.started_at, a.started_at) as started_at, coalesce(a.ended_at, e.ended_at) as ended_at
from holdfast.run r
cross join lateral generate_series(0, r.nodes - 1) as n (node_no)
left join holdfast.node m on m.run_id = r.run_id and m.node_no = n.node_no
left join holdfast.live t on t.task_id = r.run_id + 1 + n.node_no
left join holdfast.ended e on e.task_id = r.run_id + 1 + n.node_no
left join holdfast.attempt a on a.task_id = r.run_id + 1 + n.node_no and a.state = 'c'
  and a.generation = coalesce(m.generation, 1)
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
-- Begin the next generation of a run: the nodes named lose their ends, and count as not over again. Under its lock.
with cleared as (
  delete from holdfast.ended e
  where e.run_id = $1 and e.node_no = any($2::int[])
),
forgotten as (
  delete from holdfast.node n
  where n.run_id = $1 and n.node_no = any($2::int[])
),
told as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select r.tenant_id, 'execution.redriven', array[r.run_id], array[r.generation + 1],
    jsonb_build_object('actor', $5::text, 'reason', $6::text, 'nodes', $2::int[])
  from holdfast.run r
  where r.run_id = $1 and r.state in ('o', 'c', 'f') and r.generation = $7
)
update holdfast.run r
set generation = r.generation + 1, state = 'o', ended_at = null, pending = r.pending + $3, failed = r.failed - $4,
  paused_at = null, paused_by = null, paused_reason = null, is_answered = false
where r.run_id = $1 and r.state in ('o', 'c', 'f') and r.generation = $7 and r.canceled_at is null
returning r.run_id, r.snapshot_id, r.tenant_id, r.generation, r.pending, r.active, r.failed, r.nodes, r.max_active,
  r.priority, false as is_paused, false as is_canceled;
