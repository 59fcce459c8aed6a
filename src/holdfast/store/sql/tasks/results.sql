-- name: await_tasks(task_ids, tenant_id) -> rows
-- Mark tasks and runs as awaited, so that the transaction that ends them sends a notification. Returns those that have
-- not ended.
with tasks as (
  update holdfast.live t
  set is_awaited = true
  where t.task_id = any(@task_ids::bigint[]) and t.tenant_id = @tenant_id
  returning t.task_id
),
runs as (
  update holdfast.run r
  set is_awaited = true
  where r.run_id = any(@task_ids::bigint[]) and r.state = 'o' and r.tenant_id = @tenant_id
  returning r.run_id
)
select task_id from tasks
union all
select run_id from runs;

-- name: results(task_ids, tenant_id) -> rows
-- nullable: output, code, type, message, sentence
-- Return how these tasks and runs ended, if they did. A completion of an earlier generation is not the result of a node
-- that was reset; a node without a task of its own answers with its stored state.
select a.task_id, 'completed' as state, a.output, null::text as code, null::text as type, null::text as message,
  null::text as sentence
from holdfast.attempt a
left join lateral (select b.task_id from holdfast.body b where b.task_id = a.task_id limit 1) b on true
left join lateral (
  select n.generation
  from holdfast.locate_task(a.task_id) w
  join holdfast.node n on n.run_id = w.run_id and n.node_no = w.node_no
  where b.task_id is null and w.item_no is null
  limit 1
) n on true
where a.task_id = any(@task_ids::bigint[]) and a.state = 'c' and a.tenant_id = @tenant_id
  and (n.generation is null or n.generation = a.generation)
union all
select e.task_id, case e.state when 'f' then 'failed' else 'canceled' end, null, f.code, f.type, f.message, f.sentence
from holdfast.ended e
left join holdfast.failure f on f.task_id = e.task_id and f.attempt = e.attempt
where e.task_id = any(@task_ids::bigint[]) and e.tenant_id = @tenant_id
union all
select r.run_id, case r.state when 'c' then 'completed' when 'f' then 'failed' else 'canceled' end, null, null, null, null,
  null
from holdfast.run r
where r.run_id = any(@task_ids::bigint[]) and r.state <> 'o' and r.tenant_id = @tenant_id
union all
select g.task_id, n.state, m.output, null, null, null, null
from unnest(@task_ids::bigint[]) as g (task_id)
cross join lateral (
  select w.run_id, w.node_no, w.item_no
  from holdfast.locate_task(g.task_id) w
  join holdfast.run r on r.run_id = w.run_id and r.tenant_id = @tenant_id
  where not exists (select from holdfast.body b where b.task_id = g.task_id)
  limit 1
) w
cross join lateral (
  select n.state
  from holdfast.nodes_of(w.run_id) n
  where n.node_no = w.node_no and n.is_taskless and w.item_no is null
  limit 1
) n
left join holdfast.node m on m.run_id = w.run_id and m.node_no = w.node_no
where n.state in ('completed', 'failed', 'canceled', 'skipped', 'upstream_failed');

-- name: which_exist(task_ids, tenant_id) -> rows
-- Return which of these tasks and runs exist: live or ended, requested, or nodes of a run.
select t.task_id from holdfast.live t where t.task_id = any(@task_ids::bigint[]) and t.tenant_id = @tenant_id
union
select b.task_id from holdfast.body b where b.task_id = any(@task_ids::bigint[]) and b.tenant_id = @tenant_id
union
select e.task_id from holdfast.ended e where e.task_id = any(@task_ids::bigint[]) and e.tenant_id = @tenant_id
union
select r.run_id from holdfast.run r where r.run_id = any(@task_ids::bigint[]) and r.tenant_id = @tenant_id
union
select g.task_id
from unnest(@task_ids::bigint[]) as g (task_id)
cross join lateral (
  select w.run_id
  from holdfast.locate_task(g.task_id) w
  join holdfast.run r on r.run_id = w.run_id and r.tenant_id = @tenant_id
  limit 1
) w;

-- name: attempt_decision(task_id, attempt) -> value?
-- Return the decision about a failed attempt.
select f.decision
from holdfast.failure f
where f.task_id = @task_id and f.attempt = @attempt;
