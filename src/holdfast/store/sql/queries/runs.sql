-- name: list_runs
-- Return a page of runs, newest first, before an id. Each branch reads a bounded number of runs of this tenant (open
-- ones $7, others $8; see holdfast.newest_ids); a branch whose states were not requested reads nothing. `floor` is the
-- id above which all branches have read; what is below is left for the next page. Names and the first failure are read
-- only for the runs shown.
with looks as materialized (
  select 'opened' as kind, n.id, n.is_edge
  from holdfast.newest_ids('open runs', $1, 0, $5, $7) n
  where $2::text[] is null or $2 && array['queued', 'running', 'paused', 'blocked']
  union all
  select 'failed', n.id, n.is_edge
  from holdfast.newest_ids(
    'failed runs', $1, 0, $5, $8, null,
    case when $2::text[] is not null then array(
      select case g.state when 'failed' then 'f' else 'x' end from unnest($2) as g (state) where g.state in ('failed', 'canceled')
    ) end
  ) n
  where $2::text[] is null or $2 && array['failed', 'canceled']
  union all
  select 'completed', n.id, n.is_edge
  from holdfast.newest_ids('runs', $1, 0, $5, $8, null, '{c}') n
  where $2::text[] is null or 'completed' = any($2)
),
opened as materialized (
  select r.run_id, now.state
  from looks
  cross join lateral (select r.* from holdfast.run r where r.run_id = looks.id limit 1) r
  -- Evaluated once (`offset 0`), because it reads tasks, nodes and attempts.
  cross join lateral (
    select s.state
    from holdfast.state_of_run(r.run_id, r.nodes, r.state, r.canceled_at, r.paused_at, r.failed) s
    offset 0
  ) now
  where looks.kind = 'opened' and not looks.is_edge and r.tenant_id = $1
    and ($2::text[] is null or (
      ($2 && array['queued', 'running'] or r.failed > 0 and 'blocked' = any($2)
        or r.paused_at is not null and 'paused' = any($2))
      and now.state = any($2)
    ))
    and ($3::int[] is null or r.snapshot_id = any($3))
    and ($4::text is null or $4 = any(r.tags))
  limit $6
),
failed as materialized (
  select r.run_id, case r.state when 'f' then 'failed' else 'canceled' end as state
  from looks
  cross join lateral (select r.* from holdfast.run r where r.run_id = looks.id limit 1) r
  where looks.kind = 'failed' and not looks.is_edge and r.tenant_id = $1
    and ($2::text[] is null or case r.state when 'f' then 'failed' else 'canceled' end = any($2))
    and ($3::int[] is null or r.snapshot_id = any($3))
    and ($4::text is null or $4 = any(r.tags))
  limit $6
),
completed as materialized (
  select r.run_id, 'completed' as state
  from looks
  cross join lateral (select r.* from holdfast.run r where r.run_id = looks.id limit 1) r
  where looks.kind = 'completed' and not looks.is_edge and r.tenant_id = $1
    and r.state = 'c'
    and ($3::int[] is null or r.snapshot_id = any($3))
    and ($4::text is null or $4 = any(r.tags))
  limit $6
),
looked as materialized (
  select max(looks.id) as floor
  from looks
  where looks.is_edge
),
page as materialized (
  select found.run_id, found.state
  from (
    select run_id, state from opened
    union all
    select run_id, state from failed
    union all
    select run_id, state from completed
  ) found
  where found.run_id >= coalesce((select floor from looked), 0)
  order by found.run_id desc
  limit $6
)
select r.run_id::text as run_id, f.name as flow, f.version, page.state, r.nodes, r.pending, r.active,
  r.failed, r.generation, r.created_at, r.ended_at, r.key, coalesce(r.tags, '{}') as tags,
  r.parent_run_id::text as parent_run_id, r.original_run_id::text as original_run_id, holdfast.instant() as at,
  f.definition -> 'nodes' -> broken.node_no ->> 'name' as failed_node, x.code, x.type, x.message, looked.floor
from looked
left join page on true
left join holdfast.run r on r.run_id = page.run_id
left join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
left join holdfast.flow f on f.flow_id = s.flow_id
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
-- Return the snapshots of a flow, or of one version of it, newest first.
select s.snapshot_id
from holdfast.flow f
join holdfast.snapshot s on s.flow_id = f.flow_id
where f.tenant_id = $1 and f.name = $2 and ($3::int is null or f.version = $3)
order by f.version desc, s.snapshot_id desc;

-- name: show_run
-- Return one run in full, without its nodes.
select r.run_id, r.snapshot_id, f.name as flow, f.version, holdfast.run_state(r) as state, r.nodes, r.pending, r.active,
  r.failed, r.generation, r.created_at, r.ended_at, r.key, r.tags, r.max_active, r.priority, r.paused_at, r.paused_by,
  r.paused_reason, r.canceled_at, r.canceled_by, r.cancel_reason, r.parent_run_id, r.parent_node, r.original_run_id,
  r.input, holdfast.instant() as at
from holdfast.run r
join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
join holdfast.flow f on f.flow_id = s.flow_id
where r.run_id = $1 and r.tenant_id = $2;

-- name: run_progress
-- Return the progress of one run: its counters, and nothing that grows with it.
select r.run_id::text as run_id, f.name as flow, f.version, holdfast.run_state(r) as state, r.nodes, r.pending, r.active,
  r.failed, r.created_at, r.ended_at, holdfast.instant() as at
from holdfast.run r
join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
join holdfast.flow f on f.flow_id = s.flow_id
where r.run_id = $1 and r.tenant_id = $2;

-- name: last_failures
-- Return the last failure of nodes, including the last failure of any item for nodes that have items.
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
-- Return how many nodes of a run are held back, and which of its tasks waits first.
select (select count(*)::int from holdfast.node n where n.run_id = $1 and n.state = 'h') as held,
  (
    select min(t.task_id)
    from holdfast.live t
    where t.task_id > $1::bigint and t.task_id <= $1::bigint + $2::int and t.state <> 'r'
  ) as first_waiting;

-- name: list_waits
-- Return nodes of open runs that wait for an event or an approval, oldest runs first: all of them, or those that one
-- event answers, optionally of one run and its descendants.
select n.run_id, n.node_no, r.snapshot_id, n.wait_key, n.deadline, r.created_at, holdfast.instant() as at
from holdfast.node n
join holdfast.run r on r.run_id = n.run_id and r.state = 'o'
where n.tenant_id = $1 and n.state = 'w' and ($2::text is null or n.wait_key = $2)
  and (
    $3::bigint is null
    or n.run_id in (
      with recursive below as (
        select $3::bigint as run_id
        union
        select c.run_id
        from below
        join holdfast.run c on c.parent_run_id = below.run_id
      )
      select run_id
      from below
    )
  )
  and n.run_id + 1 + n.node_no > $4::bigint
order by n.run_id, n.node_no
limit $5;

-- name: read_run_for_copy
-- Return what a copy of a run begins with.
select r.snapshot_id, r.input, r.tags, r.max_active, r.priority
from holdfast.run r
where r.run_id = $1 and r.tenant_id = $2;
