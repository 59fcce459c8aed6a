-- name: no_task_is_lost() -> rows
-- Every accepted task is live, completed or ended.
select b.task_id
from holdfast.body b
left join holdfast.live t on t.task_id = b.task_id
left join holdfast.ended e on e.task_id = b.task_id
left join holdfast.attempt a on a.task_id = b.task_id and a.state = 'c'
where t.task_id is null and e.task_id is null and a.task_id is null;

-- name: every_live_task_has_a_body() -> rows
-- A task that can run has its body, unless it belongs to a run.
select t.task_id
from holdfast.live t
left join holdfast.body b on b.task_id = t.task_id
where b.task_id is null and t.run_id is null;

-- name: every_ended_task_has_a_body() -> rows
-- An ended task that may be run again has its body, unless it belongs to a run.
select e.task_id
from holdfast.ended e
left join holdfast.body b on b.task_id = e.task_id
where b.task_id is null and e.run_id is null;

-- name: every_completed_task_has_a_body() -> rows
-- A result belongs to a task, or to a node of a run or one of its items.
with span as (
  select r.run_id as first_id, r.run_id + r.nodes as last_id
  from holdfast.run r
  union all
  select n.items_first, n.items_first + n.items - 1
  from holdfast.item_span n
),
completed as (
  select a.task_id
  from holdfast.attempt a
  left join holdfast.body b on b.task_id = a.task_id
  where a.state = 'c' and b.task_id is null
),
-- Spans do not overlap: only the last one that begins before an id can contain it.
placed as (
  select u.task_id, max(u.last_id) over (order by u.id, u.task_id nulls first) as covered_until
  from (
    select span.first_id as id, span.last_id, null::bigint as task_id
    from span
    union all
    select completed.task_id, null, completed.task_id
    from completed
  ) as u
)
select placed.task_id
from placed
where placed.task_id > coalesce(placed.covered_until, 0);

-- name: a_task_completes_once() -> rows
-- A task has at most one accepted completion per generation.
select a.task_id
from holdfast.attempt a
where a.state = 'c'
group by a.task_id, a.generation
having count(*) > 1;

-- name: a_completed_task_is_not_live() -> rows
-- No task runs again after its completion was accepted.
select t.task_id
from holdfast.live t
join holdfast.attempt a on a.task_id = t.task_id and a.state = 'c'
where t.run_id is null or a.generation >= t.generation;

-- name: a_completed_task_has_not_failed() -> rows
-- A completed task is neither failed nor canceled.
select e.task_id
from holdfast.ended e
join holdfast.attempt a on a.task_id = e.task_id and a.state = 'c'
where e.run_id is null or a.generation >= e.generation;

-- name: an_ended_task_is_not_live() -> rows
-- A failed or canceled task does not run in the same generation.
select e.task_id
from holdfast.ended e
join holdfast.live t on t.task_id = e.task_id;

-- name: a_key_stands_for_a_task() -> rows
-- An idempotency key points to a task or run of its tenant that was requested under that key.
select i.task_id, i.key
from holdfast.idempotency i
left join holdfast.body b on b.task_id = i.task_id and b.tenant_id = i.tenant_id and b.key = i.key
left join holdfast.run r on r.run_id = i.task_id and r.tenant_id = i.tenant_id and r.key = i.key
where b.task_id is null and r.run_id is null;

-- name: a_keyed_task_keeps_its_key() -> rows
-- A task requested under a key is the one that the key points to, as long as the task is kept.
select b.task_id, b.key
from holdfast.body b
left join holdfast.idempotency i on i.tenant_id = b.tenant_id and i.key = b.key and i.task_id = b.task_id
where b.key is not null and i.task_id is null;

-- name: a_keyed_run_keeps_its_key() -> rows
-- A run started under a key is the one that the key points to, as long as the run is kept.
select r.run_id, r.key
from holdfast.run r
left join holdfast.idempotency i on i.tenant_id = r.tenant_id and i.key = r.key and i.task_id = r.run_id
where r.key is not null and i.task_id is null;

-- name: completed_tasks_are_counted() -> rows
-- The counts of completed tasks, plus the completions among later events, equal the completed tasks, lane by lane.
select lane_id, sum(counted) as counted, sum(there) as there
from (
  select c.lane_id, c.tasks as counted, 0 as there
  from holdfast.completed c
  union all
  select s.lane_id, s.tasks, 0
  from holdfast.completed_since((select c from holdfast.counted c), null, null) s
  union all
  select b.lane_id, 0, b.tasks
  from holdfast.completed_between(0, 9223372036854775807) b
  where b.lane_id > 0
) c
group by lane_id
having sum(counted) <> sum(there);

-- name: due_tasks_are_promoted() -> rows
-- Warning: a task has been due for more than a minute and was not made claimable.
select t.task_id
from holdfast.live t
where t.state = 'w' and t.due_at < holdfast.instant() - interval '1 minute';
