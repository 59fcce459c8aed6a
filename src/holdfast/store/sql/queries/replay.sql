-- name: read_captured(task_id, tenant_id) -> row?
-- nullable: run_id, lane_id, input, tags
-- null with run_id: node_no
-- Return the request of a task in any state: a node (or one of its items) names its run, a plain task has its input.
select c.run_id, c.node_no, c.lane_id, c.input, c.tags, c.is_past
from (
  select 1 as rank, t.run_id, t.node_no, t.lane_id, null::bytea as input, null::text[] as tags,
    false as is_past
  from holdfast.live t
  where t.task_id = @task_id and t.tenant_id = @tenant_id and t.run_id is not null
  union all
  select 2, e.run_id, e.node_no, e.lane_id, e.input, e.tags, exists (
      select from holdfast.past_items p
      where p.run_id = e.run_id and e.task_id between p.items_first and p.items_first + p.items - 1
    )
  from holdfast.ended e
  where e.task_id = @task_id and e.tenant_id = @tenant_id
  union all
  select 3, null, null, b.lane_id, b.input, b.tags, false
  from holdfast.body b
  where b.task_id = @task_id and b.tenant_id = @tenant_id
  union all
  select 4, r.run_id, (@task_id - r.run_id - 1)::int, null, null, null, false
  from (
    select r.run_id, r.nodes
    from holdfast.run r
    where r.tenant_id = @tenant_id and r.run_id < @task_id
    order by r.run_id desc
    limit 1
  ) r
  where @task_id <= r.run_id + r.nodes
  union all
  select 5, n.run_id, n.node_no, null, null, null, n.is_past
  from (
    select n.run_id, n.node_no, n.tenant_id, n.items_first, n.items, n.is_past
    from holdfast.item_span n
    where n.items_first <= @task_id
    order by n.items_first desc
    limit 1
  ) n
  where n.tenant_id = @tenant_id and @task_id < n.items_first + n.items
) c
order by c.rank
limit 1;

-- name: read_recorded(task_id, tenant_id) -> rows
-- nullable: output
-- Return how the attempts of a task ended, newest first; an open attempt is running.
select a.attempt, a.generation, case a.state when 'c' then 'completed' when 'x' then 'canceled' else 'released' end as state, '' as code,
  '' as type, '' as message, '' as traceback, a.output
from holdfast.attempt a
where a.task_id = @task_id and a.tenant_id = @tenant_id
union all
select f.attempt, f.generation, case f.state when 'f' then 'failed' when 't' then 'timed_out' else 'lost' end, f.code, f.type, f.message,
  f.traceback, null
from holdfast.failure f
where f.task_id = @task_id and f.tenant_id = @tenant_id
union all
select t.attempt, t.generation, 'running', '', '', '', '', null
from holdfast.live t
where t.task_id = @task_id and t.tenant_id = @tenant_id and t.state in ('r', 'v')
order by attempt desc;

-- name: read_receipts(task_id, tenant_id, key?) -> rows
-- nullable: user_key, receipt
-- Return the answers of a task's effects: receipts and refusals, not unknown outcomes. Includes receipts of the tasks
-- that it replaces, and the one under a key (@key), whichever task sent it; refusals of other tasks do not count.
with known as (
  select e.key
  from holdfast.effect e
  where e.task_id = @task_id and e.tenant_id = @tenant_id
  union
  select e.key
  from holdfast.predecessor_tasks(@task_id) b
  join holdfast.effect e on e.task_id = b.counterpart
  where e.tenant_id = @tenant_id and e.user_key is null and e.compensated_by is null
  union
  select @key::text
)
select e.task_id::text as task_id, e.name as effect, e.user_key, e.ordinal, e.digest, case e.state when 'd' then 'done' else 'refused' end as state,
  e.receipt, coalesce(e.code, '') as code, coalesce(e.message, '') as message
from known
join holdfast.effect e on e.tenant_id = @tenant_id and e.key = known.key
where e.state = 'd' or (e.state = 'r' and e.task_id = @task_id)
order by e.opened_at, e.key;

-- name: read_steps(task_id, tenant_id, generation) -> rows
-- Return the step results of a task in one generation, whichever attempt stored them: the others reused them.
select s.name, s.digest, s.output
from holdfast.step s
where s.task_id = @task_id and s.tenant_id = @tenant_id and s.generation = @generation
order by s.kept_at, s.name, s.digest;

-- name: read_kept_input(task_id, tenant_id, generation) -> value?
-- Return the input of a node that the dead letter of an attempt's generation stores: its bindings may give another one
-- now.
select d.input
from holdfast.dead_letter d
where d.task_id = @task_id and d.tenant_id = @tenant_id and d.generation = @generation and d.input is not null
order by d.dead_letter_id desc
limit 1;
