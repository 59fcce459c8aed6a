-- name: await_tasks
-- Ask whoever ends these tasks and runs to ring. What comes back is not over yet.
with tasks as (
  update holdfast.live t
  set is_awaited = true
  where t.task_id = any($1::bigint[])
  returning t.task_id
),
runs as (
  update holdfast.run r
  set is_awaited = true
  where r.run_id = any($1::bigint[]) and r.state = 'o'
  returning r.run_id
)
select task_id from tasks
union all
select run_id from runs;

-- name: results
-- How these tasks and runs ended, if they did.
select a.task_id, 'completed' as state, a.output, null::text as code, null::text as type, null::text as message,
  null::text as sentence
from holdfast.attempt a
where a.task_id = any($1::bigint[]) and a.state = 'c'
union all
select e.task_id, case e.state when 'f' then 'failed' else 'canceled' end, null, f.code, f.type, f.message, f.sentence
from holdfast.ended e
left join holdfast.failure f on f.task_id = e.task_id and f.attempt = e.attempt
where e.task_id = any($1::bigint[])
union all
select r.run_id, case r.state when 'c' then 'completed' when 'f' then 'failed' else 'canceled' end, null, null, null, null,
  null
from holdfast.run r
where r.run_id = any($1::bigint[]) and r.state <> 'o';

-- name: which_exist
-- Which of these tasks are live or ended here.
select t.task_id from holdfast.live t where t.task_id = any($1::bigint[])
union
select b.task_id from holdfast.body b where b.task_id = any($1::bigint[])
union
select e.task_id from holdfast.ended e where e.task_id = any($1::bigint[])
union
select r.run_id from holdfast.run r where r.run_id = any($1::bigint[]);

-- name: attempt_decision
-- What was decided about an attempt that failed.
select f.decision
from holdfast.failure f
where f.task_id = $1 and f.attempt = $2;
