-- name: list_runs(tenant_id, states?, snapshot_ids?, tag?, run_id_max, limit, scan_open_max, scan_rows_max) -> rows
-- nullable: run_id, ended_at, key, parent_run_id, original_run_id, failed_node, code, type, message, floor
-- null with run_id: flow, version, state, nodes, pending, active, failed, generation, created_at
-- Return a page of runs, newest first, before an id. Each branch reads a bounded number of runs of this tenant (open
-- ones @scan_open_max, others @scan_rows_max; see holdfast.newest_ids); a branch whose states were not requested reads nothing. `floor` is the
-- id above which all branches have read; what is below is left for the next page. Names and the first failure are read
-- only for the runs shown.
with looks as materialized (
  select 'opened' as kind, n.id, n.is_edge
  from holdfast.newest_ids('open runs', @tenant_id, 0, @run_id_max, @scan_open_max) n
  where @states::text[] is null or @states && array['queued', 'running', 'paused', 'blocked']
  union all
  select 'failed', n.id, n.is_edge
  from holdfast.newest_ids(
    'failed runs', @tenant_id, 0, @run_id_max, @scan_rows_max, null,
    case when @states::text[] is not null then array(
      select case g.state when 'failed' then 'f' else 'x' end from unnest(@states) as g (state) where g.state in ('failed', 'canceled')
    ) end
  ) n
  where @states::text[] is null or @states && array['failed', 'canceled']
  union all
  select 'completed', n.id, n.is_edge
  from holdfast.newest_ids('runs', @tenant_id, 0, @run_id_max, @scan_rows_max, null, '{c}') n
  where @states::text[] is null or 'completed' = any(@states)
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
  where looks.kind = 'opened' and not looks.is_edge and r.tenant_id = @tenant_id
    and (@states::text[] is null or (
      (@states && array['queued', 'running'] or r.failed > 0 and 'blocked' = any(@states)
        or r.paused_at is not null and 'paused' = any(@states))
      and now.state = any(@states)
    ))
    and (@snapshot_ids::int[] is null or r.snapshot_id = any(@snapshot_ids))
    and (@tag::text is null or @tag = any(r.tags))
  limit @limit
),
failed as materialized (
  select r.run_id, case r.state when 'f' then 'failed' else 'canceled' end as state
  from looks
  cross join lateral (select r.* from holdfast.run r where r.run_id = looks.id limit 1) r
  where looks.kind = 'failed' and not looks.is_edge and r.tenant_id = @tenant_id
    and (@states::text[] is null or case r.state when 'f' then 'failed' else 'canceled' end = any(@states))
    and (@snapshot_ids::int[] is null or r.snapshot_id = any(@snapshot_ids))
    and (@tag::text is null or @tag = any(r.tags))
  limit @limit
),
completed as materialized (
  select r.run_id, 'completed' as state
  from looks
  cross join lateral (select r.* from holdfast.run r where r.run_id = looks.id limit 1) r
  where looks.kind = 'completed' and not looks.is_edge and r.tenant_id = @tenant_id
    and r.state = 'c'
    and (@snapshot_ids::int[] is null or r.snapshot_id = any(@snapshot_ids))
    and (@tag::text is null or @tag = any(r.tags))
  limit @limit
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
  limit @limit
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

-- name: find_snapshots(tenant_id, name, version?) -> rows
-- Return the snapshots of a flow, or of one version of it, newest first.
select s.snapshot_id
from holdfast.flow f
join holdfast.snapshot s on s.flow_id = f.flow_id
where f.tenant_id = @tenant_id and f.name = @name and (@version::int is null or f.version = @version)
order by f.version desc, s.snapshot_id desc;

-- name: show_run(run_id, tenant_id) -> row?
-- nullable: ended_at, key, tags, max_active, priority, paused_at, paused_by, paused_reason, canceled_at,
--   canceled_by, cancel_reason, parent_run_id, parent_node, original_run_id
-- Return one run in full, without its nodes.
select r.run_id, r.snapshot_id, f.name as flow, f.version, holdfast.run_state(r) as state, r.nodes, r.pending, r.active,
  r.failed, r.generation, r.created_at, r.ended_at, r.key, r.tags, r.max_active, r.priority, r.paused_at, r.paused_by,
  r.paused_reason, r.canceled_at, r.canceled_by, r.cancel_reason, r.parent_run_id, r.parent_node, r.original_run_id,
  r.input, holdfast.instant() as at
from holdfast.run r
join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
join holdfast.flow f on f.flow_id = s.flow_id
where r.run_id = @run_id and r.tenant_id = @tenant_id;

-- name: run_progress(run_id, tenant_id) -> row?
-- nullable: ended_at
-- Return the progress of one run: its counters, and nothing that grows with it.
select r.run_id::text as run_id, f.name as flow, f.version, holdfast.run_state(r) as state, r.nodes, r.pending, r.active,
  r.failed, r.created_at, r.ended_at, holdfast.instant() as at
from holdfast.run r
join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
join holdfast.flow f on f.flow_id = s.flow_id
where r.run_id = @run_id and r.tenant_id = @tenant_id;

-- name: last_failures(run_id, node_nos) -> rows
-- Return the last failure of nodes, including the last failure of any item for nodes that have items.
select g.node_no, x.task_id, x.attempt, x.state::text as state, x.code, x.type, x.message, x.reason, x.rule, x.sentence,
  x.ended_at
from unnest(@node_nos::int[]) as g (node_no)
left join holdfast.node n on n.run_id = @run_id and n.node_no = g.node_no
cross join lateral (
  select y.*
  from (
    (select f.* from holdfast.failure f where f.task_id = @run_id::bigint + 1 + g.node_no order by f.attempt desc limit 1)
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

-- name: waiting_counts(run_id, nodes) -> row
-- nullable: first_waiting
-- Return how many nodes of a run are held back, and which of its tasks waits first.
select (select count(*)::int from holdfast.node n where n.run_id = @run_id and n.state = 'h') as held,
  (
    select min(t.task_id)
    from holdfast.live t
    where t.task_id > @run_id::bigint and t.task_id <= @run_id::bigint + @nodes::int and t.state <> 'r'
  ) as first_waiting;

-- name: list_waits(tenant_id, wait_key?, run_id?, after, limit) -> rows
-- nullable: deadline
-- Return nodes of open runs that wait for an event or an approval, oldest runs first: all of them, or those that one
-- event answers, optionally of one run and its descendants.
select n.run_id, n.node_no, r.snapshot_id, n.wait_key, n.deadline, r.created_at, holdfast.instant() as at
from holdfast.node n
join holdfast.run r on r.run_id = n.run_id and r.state = 'o'
where n.tenant_id = @tenant_id and n.state = 'w' and (@wait_key::text is null or n.wait_key = @wait_key)
  and (
    @run_id::bigint is null
    or n.run_id in (
      with recursive below as (
        select @run_id::bigint as run_id
        union
        select c.run_id
        from below
        join holdfast.run c on c.parent_run_id = below.run_id
      )
      select run_id
      from below
    )
  )
  and n.run_id + 1 + n.node_no > @after::bigint
order by n.run_id, n.node_no
limit @limit;

-- name: read_run_for_copy(run_id, tenant_id) -> row?
-- nullable: tags, max_active, priority
-- Return what a copy of a run begins with.
select r.snapshot_id, r.input, r.tags, r.max_active, r.priority
from holdfast.run r
where r.run_id = @run_id and r.tenant_id = @tenant_id;
