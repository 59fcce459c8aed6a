-- name: claim_run_key(tenant_id, key, task_count, flow, input) -> value?
-- Insert an idempotency key for a run that is about to start, and take its span of ids. Returns no row if the key
-- exists; a caller that waited for a concurrent start sees that run now.
insert into holdfast.idempotency (tenant_id, key, task_id, digest)
values (@tenant_id, @key, holdfast.take_span(@task_count::bigint + 1),
  sha256(convert_to(@flow || E'\n' || convert_from(@input::bytea, 'utf8')::jsonb::text, 'utf8')))
on conflict (tenant_id, key) do nothing
returning task_id;

-- name: start_runs(tenant_id, snapshot_id, pending, inputs, max_active?, priority?, tags?, key?, parent_run_id?,
--   parent_node?, node_nos, lane_ids, policy_ids, priorities, max_retries, max_losses, original_run_id?,
--   first_id?) -> value
-- Start runs of one snapshot, each with its own input: insert each run with a span of ids, taken here or before, and
-- its nodes without upstreams as queued tasks. Returns the ids in the order of the inputs.
with span as materialized (
  select coalesce(@first_id::bigint, holdfast.take_span(cardinality(@inputs::bytea[]) * (@pending::bigint + 1))) as first_id
),
inserted as (
  insert into holdfast.run (
    run_id, tenant_id, snapshot_id, nodes, pending, active, input, max_active, priority, tags, key, parent_run_id,
    parent_node, original_run_id
  )
  select span.first_id + (g.n - 1) * (@pending::bigint + 1), @tenant_id, @snapshot_id, @pending, @pending, cardinality(@node_nos::int[]), g.input, @max_active, @priority,
    @tags::text[], @key::text, @parent_run_id::bigint, @parent_node::int, @original_run_id::bigint
  from span
  cross join unnest(@inputs::bytea[]) with ordinality as g (input, n)
  returning run_id
),
released as (
  insert into holdfast.live (
    task_id, tenant_id, lane_id, policy_id, priority, max_retries, max_losses, state, run_id, node_no
  )
  select inserted.run_id + 1 + r.node_no, @tenant_id, r.lane_id, r.policy_id, r.priority, r.max_retries, r.max_losses, 'q',
    inserted.run_id, r.node_no
  from inserted
  cross join unnest(@node_nos::int[], @lane_ids::int[], @policy_ids::int[], @priorities::smallint[], @max_retries::smallint[], @max_losses::smallint[])
    as r (node_no, lane_id, policy_id, priority, max_retries, max_losses)
  returning task_id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select @tenant_id, 'execution.started', array_agg(run_id), array_agg(1)
  from inserted
  union all
  select @tenant_id, 'task.queued', array_agg(task_id), array_agg(0)
  from released
  having count(*) > 0
)
select array_agg(run_id order by run_id)
from inserted;

-- name: lock_runs(run_ids) -> rows
-- nullable: max_active, priority
-- Lock runs, so that only this transaction changes their graphs. Every transaction locks in this order, after task rows
-- and before node rows, so there is no deadlock. A run that has ended is not found.
select r.run_id, r.snapshot_id, r.tenant_id, r.generation, r.pending, r.active, r.failed, r.nodes, r.max_active,
  r.priority, r.paused_at is not null as is_paused, r.canceled_at is not null as is_canceled
from holdfast.run r
where r.run_id = any(@run_ids::bigint[]) and r.state = 'o'
order by r.run_id
for no key update of r;

-- name: read_nodes(run_ids, node_nos) -> rows
-- Return the stored state of some nodes, under the locks of their runs.
select n.run_id, n.node_no, n.state::text as state, n.pending, n.succeeded, n.skipped, n.failed, n.attempt, n.generation
from unnest(@run_ids::bigint[], @node_nos::int[]) as g (run_id, node_no)
join holdfast.node n on n.run_id = g.run_id and n.node_no = g.node_no
where n.run_id = any(@run_ids::bigint[]);

-- name: advance_runs(run_ids?, node_nos?, tenant_ids?, states?, pending?, succeeded?, skipped?, failed?, attempts?,
--   generations?, new_run_ids?, first_nos?, last_nos?, new_tenant_ids?, lane_ids?, policy_ids?, priorities?,
--   max_retries?, max_losses?, new_attempts?, new_generations?, group_run_ids?, group_ended?, group_left_active?,
--   group_released?, group_failed?, event_tenant_ids?, event_kinds?, event_task_ids?, event_attempts?) -> row
-- nullable: awaited, children
-- Write the consequences of ended nodes: node states, the tasks that are released (in spans of equal neighbours), the
-- counters of runs and, if nothing is left, how they ended. Events of runs follow those of their nodes. Requires the
-- locks of the runs; `state = 'o'` guards the end: it is written once per generation.
with nodes as (
  insert into holdfast.node (
    run_id, node_no, tenant_id, state, pending, succeeded, skipped, failed, attempt, generation
  )
  select g.run_id, g.node_no, g.tenant_id, g.state::"char", g.pending, g.succeeded, g.skipped, g.failed, g.attempt,
    g.generation
  from unnest(
    @run_ids::bigint[], @node_nos::int[], @tenant_ids::int[], @states::text[], @pending::int[], @succeeded::int[], @skipped::int[], @failed::int[], @attempts::int[], @generations::smallint[]
  ) as g (run_id, node_no, tenant_id, state, pending, succeeded, skipped, failed, attempt, generation)
  on conflict (run_id, node_no) do update
  set state = excluded.state, pending = excluded.pending, succeeded = excluded.succeeded, skipped = excluded.skipped,
    failed = excluded.failed, attempt = excluded.attempt, generation = excluded.generation
),
spans as materialized (
  select *
  from unnest(
    @new_run_ids::bigint[], @first_nos::int[], @last_nos::int[], @new_tenant_ids::int[], @lane_ids::int[], @policy_ids::int[], @priorities::smallint[], @max_retries::smallint[],
    @max_losses::smallint[], @new_attempts::int[], @new_generations::smallint[]
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
  from unnest(@group_run_ids::bigint[], @group_ended::int[], @group_left_active::int[], @group_released::int[], @group_failed::int[])
    as g (run_id, ended, left_active, released, failed)
  where r.run_id = g.run_id and r.run_id = any(@group_run_ids::bigint[]) and r.state = 'o'
  returning r.run_id, r.tenant_id, r.generation, r.state, r.is_awaited, r.parent_run_id
),
events as (
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
    from unnest(@event_tenant_ids::int[], @event_kinds::text[], @event_task_ids::bigint[], @event_attempts::int[]) as g (tenant_id, kind, task_id, attempt)
  ) as happened
  group by tenant_id, kind
  order by kind like 'execution.%', kind
)
select array_agg(run_id) filter (where is_awaited) as awaited, array_agg(run_id) filter (where parent_run_id is not null) as children
from counted
where state <> 'o';

-- name: read_runs(run_ids) -> rows
-- nullable: tags
-- Return the inputs of runs and their snapshots.
select r.run_id, r.snapshot_id, r.generation, r.input, r.tags
from holdfast.run r
where r.run_id = any(@run_ids::bigint[]);

-- name: read_outputs(task_ids) -> rows
-- Return the outputs of completed tasks, one for every generation in which they completed.
select a.task_id, a.generation, a.output
from holdfast.attempt a
where a.task_id = any(@task_ids::bigint[]) and a.state = 'c';

-- name: read_taskless_outputs(run_ids, node_nos) -> rows
-- nullable: output, case
-- Return the outputs of completed nodes that ran no task of their own or one per item: the stored output, or the
-- outputs of all items in order. A node without a row has not completed.
select n.run_id, n.node_no, n.output,
  case when n.items > 0 then array(
    select a.output
    from holdfast.attempt a
    where a.task_id between n.items_first and n.items_first + n.items - 1 and a.state = 'c'
    order by a.task_id
  ) end
from unnest(@run_ids::bigint[], @node_nos::int[]) as g (run_id, node_no)
join holdfast.node n on n.run_id = g.run_id and n.node_no = g.node_no
where n.state = 'c' and n.run_id = any(@run_ids::bigint[]);

-- name: run_snapshots(run_ids, tenant_id) -> row?
-- Return the snapshot of each run.
select run_id, snapshot_id
from holdfast.run
where run_id = any(@run_ids::bigint[]) and tenant_id = @tenant_id;

-- name: lock_run(run_id, tenant_id) -> row?
-- nullable: max_active, priority, parent_run_id
-- Lock one run, open or ended.
select r.run_id, r.snapshot_id, r.tenant_id, r.generation, r.pending, r.active, r.failed, r.nodes, r.max_active,
  r.priority, r.paused_at is not null as is_paused, r.canceled_at is not null as is_canceled, r.state::text as state,
  r.is_held, r.parent_run_id, r.is_replaced, r.is_wanted
from holdfast.run r
where r.run_id = @run_id and r.tenant_id = @tenant_id
for no key update of r;

-- name: read_run(run_id, tenant_id) -> row?
-- nullable: max_active, priority, parent_run_id
-- Return the last committed state of one run, open or ended, without a lock.
select r.run_id, r.snapshot_id, r.tenant_id, r.generation, r.pending, r.active, r.failed, r.nodes, r.max_active,
  r.priority, r.paused_at is not null as is_paused, r.canceled_at is not null as is_canceled, r.state::text as state,
  r.is_held, r.parent_run_id, r.is_replaced, r.is_wanted
from holdfast.run r
where r.run_id = @run_id and r.tenant_id = @tenant_id;

-- name: held_nodes(run_id, limit) -> rows
-- Return the nodes that a run held back, in order, under its lock.
select n.node_no, n.state::text as state, n.pending, n.succeeded, n.skipped, n.failed, n.attempt, n.generation
from holdfast.node n
where n.run_id = @run_id and n.state = 'h'
order by n.node_no
limit @limit;

-- name: store_node_counts(run_ids, node_nos, pending, succeededs, skippeds, failed) -> nothing
-- Write the counters of nodes whose state was written when they began or ended without a task, under the locks of their
-- runs.
update holdfast.node n
set pending = g.pending, succeeded = g.succeeded, skipped = g.skipped, failed = g.failed
from unnest(@run_ids::bigint[], @node_nos::int[], @pending::int[], @succeededs::int[], @skippeds::int[], @failed::int[])
  as g (run_id, node_no, pending, succeeded, skipped, failed)
where n.run_id = g.run_id and n.node_no = g.node_no and n.run_id = any(@run_ids::bigint[]);
