-- name: only_published_transitions_happen() -> rows
-- Recent events follow one another as the published table of transitions allows.
with recent as materialized (
  select e.seq, e.kind, e.task_ids
  from holdfast.event e
  order by e.xid desc, e.seq desc
  limit 20000
),
happened as (
  select task_id, recent.seq, recent.kind as next, lag(recent.kind) over (partition by task_id order by recent.seq) as last
  from recent
  cross join lateral unnest(recent.task_ids) as task_id
  where recent.kind in (
    'task.reserved', 'task.launch_failed', 'task.started', 'task.completed', 'task.retrying', 'task.released',
    'task.failed', 'task.canceled',
    'task.revived', 'task.skipped', 'task.upstream_failed'
  )
),
legal (last, next) as (
  values
    ('task.reserved', 'task.started'), ('task.reserved', 'task.retrying'), ('task.reserved', 'task.failed'),
    ('task.reserved', 'task.canceled'), ('task.reserved', 'task.launch_failed'),
    ('task.launch_failed', 'task.reserved'), ('task.launch_failed', 'task.canceled'), ('task.launch_failed', 'task.started'),
    ('task.started', 'task.completed'), ('task.started', 'task.retrying'), ('task.started', 'task.failed'),
    ('task.started', 'task.released'), ('task.started', 'task.canceled'),
    ('task.retrying', 'task.started'), ('task.retrying', 'task.reserved'), ('task.retrying', 'task.canceled'),
    ('task.released', 'task.started'), ('task.released', 'task.reserved'), ('task.released', 'task.canceled'),
    ('task.revived', 'task.started'), ('task.revived', 'task.reserved'), ('task.revived', 'task.canceled'),
    ('task.failed', 'task.revived'), ('task.canceled', 'task.revived'), ('task.completed', 'task.revived'),
    ('task.revived', 'task.revived'), ('task.skipped', 'task.revived'), ('task.upstream_failed', 'task.revived'),
    ('task.revived', 'task.skipped'), ('task.revived', 'task.upstream_failed'),
    -- A node that runs no task may end as it begins, and a wait may be skipped when its time is over.
    ('task.revived', 'task.completed'), ('task.revived', 'task.failed'), ('task.started', 'task.skipped')
)
select happened.task_id, happened.last, happened.next
from happened
left join legal on legal.last = happened.last and legal.next = happened.next
where happened.last is not null and legal.next is null;

-- name: events_agree_with_state() -> rows
-- The last recent event of a task matches its state and attempt.
with recent as materialized (
  select e.seq, e.kind, e.task_ids, e.attempts, row_number() over (order by e.xid desc, e.seq desc) as age
  from holdfast.event e
  order by e.xid desc, e.seq desc
  limit 20000
),
last as (
  select distinct on (g.task_id) g.task_id, g.attempt, recent.kind
  from recent
  cross join lateral unnest(recent.task_ids, recent.attempts) as g (task_id, attempt)
  where recent.age <= 19000 and recent.kind in (
    'task.reserved', 'task.launch_failed', 'task.started', 'task.completed', 'task.retrying', 'task.released',
    'task.failed', 'task.canceled',
    'task.revived'
  )
  order by g.task_id, recent.seq desc
),
current as (
  select t.task_id, t.attempt, case
      when t.state = 'r' then array['task.started']
      when t.state = 'v' then array['task.reserved']
      when t.state = 'w' then array['task.retrying', 'task.launch_failed']
      else array['task.retrying', 'task.released', 'task.revived', 'task.launch_failed']
    end as kinds
  from holdfast.live t
  union all
  select a.task_id, a.attempt, array['task.completed']
  from holdfast.attempt a
  left join (select n.run_id + 1 + n.node_no as task_id, n.generation from holdfast.node n) reset on reset.task_id = a.task_id
  where a.state = 'c' and a.generation >= coalesce(reset.generation, 1)
  union all
  select e.task_id, e.attempt, array[case e.state when 'f' then 'task.failed' else 'task.canceled' end]
  from holdfast.ended e
)
select last.task_id, last.kind, last.attempt as told, current.attempt
from last
join current on current.task_id = last.task_id
where last.kind <> all(current.kinds)
  -- A failed launch was no attempt: its event has the number that is free again.
  or last.attempt - (last.kind = 'task.launch_failed')::int <> current.attempt;
