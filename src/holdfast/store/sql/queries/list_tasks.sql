-- name: find_tasks(tenant_id, states?, lane_ids?, tag?, task_id_max, limit, scan_rows_max, task_id_min, live_codes,
--   scan_completed_max) -> rows
-- nullable: task_id, run_id, node_no, floor
-- null with task_id: state, attempt
-- Return a page of tasks that have a row of their own, newest first, with ids from @task_id_min to before @task_id_max. Each branch reads
-- at most @scan_rows_max rows of this tenant (attempts @scan_completed_max), however few of them match, and a branch whose states were not
-- requested reads nothing (see holdfast.newest_ids). Queued tasks have no index by tenant: they are found among the
-- newest of all, or else lane by lane, from each lane as many as the page shows, or with a tag its share of the rows to
-- read. `floor` is the id above which all branches have read; what is below is left for the next page. Values that join
-- tables come from subqueries that are not flattened (`offset 0`): under row-level security an expression would prevent
-- the use of an index.
with lanes as materialized (
  select l.lane_id
  from holdfast.lane l
  where l.tenant_id = @tenant_id and (@lane_ids::int[] is null or l.lane_id = any(@lane_ids))
),
looks as materialized (
  select 'queued' as kind, n.id, n.number, n.is_edge
  from holdfast.newest_ids('queued', @tenant_id, @task_id_min, @task_id_max, @scan_rows_max, @lane_ids) n
  where @states::text[] is null or 'queued' = any(@states)
  union all
  select 'held', n.id, n.number, n.is_edge
  from holdfast.newest_ids('running', @tenant_id, @task_id_min, @task_id_max, @scan_rows_max, @lane_ids) n
  where 'r' = any(@live_codes::text[])
  union all
  select 'held', n.id, n.number, n.is_edge
  from holdfast.newest_ids('waiting', @tenant_id, @task_id_min, @task_id_max, @scan_rows_max, @lane_ids) n
  where @live_codes::text[] && array['v', 'w']
  union all
  select 'over', n.id, n.number, n.is_edge
  from holdfast.newest_ids(
    'ended', @tenant_id, @task_id_min, @task_id_max, @scan_rows_max, @lane_ids,
    case when @states::text[] is not null then array(
      select case g.state when 'failed' then 'f' else 'x' end from unnest(@states) as g (state) where g.state in ('failed', 'canceled')
    ) end
  ) n
  where @states::text[] is null or @states && array['failed', 'canceled']
  union all
  select 'done', n.id, n.number, n.is_edge
  from holdfast.newest_ids('completed', @tenant_id, @task_id_min, @task_id_max, @scan_completed_max) n
  where @states::text[] is null or 'completed' = any(@states)
),
newest as materialized (
  select t.task_id, 'queued' as state, t.attempt, t.run_id, t.node_no
  from looks
  cross join lateral (select t.* from holdfast.live t where t.task_id = looks.id limit 1) t
  left join lateral (select b.tags from holdfast.body b where @tag::text is not null and b.task_id = t.task_id limit 1) b on true
  left join lateral (select r.tags from holdfast.run r where @tag::text is not null and r.run_id = t.run_id limit 1) r on true
  where looks.kind = 'queued' and not looks.is_edge
    and t.state = 'q' and t.tenant_id = @tenant_id
    and (@lane_ids::int[] is null or t.lane_id = any(@lane_ids))
    and (@tag::text is null or @tag = any(b.tags) or @tag = any(r.tags))
  limit @limit
),
share as materialized (
  select case when @tag::text is null then @limit::bigint else greatest(@scan_rows_max / greatest(count(*), 1), 1) end as most
  from lanes
),
-- If the read reached no edge, there are no other queued tasks. With a tag, a tenant that has many of the newest tasks
-- finds more there.
ways as materialized (
  select coalesce(bool_or(looks.is_edge), false) and (@tag::text is null or count(*) filter (where not looks.is_edge) * 2 < @scan_rows_max)
    as is_long
  from looks
  where looks.kind = 'queued'
),
walked as materialized (
  select lanes.lane_id, p.priority, t.task_id, t.attempt, t.run_id, t.node_no
  from lanes
  cross join generate_series(0, 9) as p (priority)
  cross join lateral (
    select t.task_id, t.attempt, t.run_id, t.node_no
    from holdfast.live t
    where t.state = 'q' and t.lane_id = lanes.lane_id and t.priority = p.priority and t.task_id < @task_id_max and t.task_id >= @task_id_min
    order by t.task_id desc
    limit (select share.most from share)
  ) t
  where (@states::text[] is null or 'queued' = any(@states)) and (select count(*) from newest) < @limit
    and (select ways.is_long from ways)
),
queued as materialized (
  select newest.task_id, newest.state, newest.attempt, newest.run_id, newest.node_no
  from newest
  union
  (
    select t.task_id, 'queued', t.attempt, t.run_id, t.node_no
    from walked t
    left join lateral (select b.tags from holdfast.body b where @tag::text is not null and b.task_id = t.task_id limit 1) b on true
    left join lateral (select r.tags from holdfast.run r where @tag::text is not null and r.run_id = t.run_id limit 1) r on true
    where @tag::text is null or @tag = any(b.tags) or @tag = any(r.tags)
    order by t.task_id desc
    limit @limit
  )
),
open_tasks as materialized (
  select t.task_id, t.attempt, t.run_id, t.node_no,
    case when t.state = 'r' then 'running' when t.is_retrying then 'retrying' else 'queued' end as state
  from looks
  cross join lateral (select t.* from holdfast.live t where t.task_id = looks.id limit 1) t
  left join lateral (select b.tags from holdfast.body b where @tag::text is not null and b.task_id = t.task_id limit 1) b on true
  left join lateral (select r.tags from holdfast.run r where @tag::text is not null and r.run_id = t.run_id limit 1) r on true
  where looks.kind = 'held' and not looks.is_edge
    and t.state <> 'q' and t.state = any(@live_codes::text[]::"char"[]) and t.tenant_id = @tenant_id
    and (@states::text[] is null
      or case when t.state = 'r' then 'running' when t.is_retrying then 'retrying' else 'queued' end = any(@states)
      or ('delayed' = any(@states) and t.state = 'w' and not t.is_retrying))
    and (@lane_ids::int[] is null or t.lane_id = any(@lane_ids))
    and (@tag::text is null or @tag = any(b.tags) or @tag = any(r.tags))
),
ended_tasks as materialized (
  select e.task_id, case e.state when 'f' then 'failed' else 'canceled' end as state, e.attempt, e.run_id, e.node_no
  from looks
  cross join lateral (select e.* from holdfast.ended e where e.task_id = looks.id limit 1) e
  left join lateral (select r.tags from holdfast.run r where @tag::text is not null and r.run_id = e.run_id limit 1) r on true
  where looks.kind = 'over' and not looks.is_edge and e.tenant_id = @tenant_id
    and (@states::text[] is null or case e.state when 'f' then 'failed' else 'canceled' end = any(@states))
    and (@lane_ids::int[] is null or e.lane_id = any(@lane_ids))
    and (@tag::text is null or @tag = any(e.tags) or @tag = any(r.tags))
  limit @limit
),
done as materialized (
  select a.task_id, 'completed' as state, a.attempt, w.run_id, w.node_no
  from looks
  cross join lateral (
    select a.task_id, a.attempt, a.generation, a.state, a.tenant_id
    from holdfast.attempt a
    where a.task_id = looks.id and a.attempt = looks.number
    limit 1
  ) a
  left join lateral (select b.lane_id, b.tags from holdfast.body b where b.task_id = a.task_id limit 1) b on true
  left join lateral (
    select w.run_id, w.node_no, w.item_no, r.tags, s.lane_ids[w.node_no + 1] as lane_id,
      coalesce(m.generation, 1) as generation
    from (select * from holdfast.locate_task(a.task_id) offset 0) w
    join holdfast.run r on r.run_id = w.run_id
    join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
    left join lateral (
      select m.generation
      from holdfast.node m
      where m.run_id = w.run_id and m.node_no = w.node_no
      limit 1
    ) m on true
    where b.lane_id is null
    limit 1
  ) w on true
  where looks.kind = 'done' and not looks.is_edge
    and a.state = 'c' and a.tenant_id = @tenant_id
    and (b.lane_id is not null or w.item_no is not null or w.generation = a.generation)
    and (@lane_ids::int[] is null or coalesce(b.lane_id, w.lane_id) = any(@lane_ids))
    and (@tag::text is null or @tag = any(b.tags) or @tag = any(w.tags))
  limit @limit
),
looked as materialized (
  select greatest(
    (select max(looks.id) from looks where looks.is_edge and looks.kind <> 'queued'),
    -- With a tag, use whichever way read further: among the newest of all, or along the lanes. Without one nothing was
    -- left out.
    case when @tag::text is not null and (select count(*) from newest) < @limit
      then least(
        (select looks.id from looks where looks.kind = 'queued' and looks.is_edge),
        case when (select ways.is_long from ways)
          then coalesce(
            (
              select max(cut.last_id)
              from (
                select min(walked.task_id) as last_id
                from walked
                group by walked.lane_id, walked.priority
                having count(*) >= (select share.most from share)
              ) cut
            ),
            0
          ) end
      ) end
  ) as floor
)
select found.task_id, found.state, found.attempt, found.run_id, found.node_no, nullif(looked.floor, 0) as floor
from looked
left join lateral (
  select found.*
  from (
    select task_id, state, attempt, run_id, node_no from queued
    union all
    select task_id, state, attempt, run_id, node_no from open_tasks
    union all
    select task_id, state, attempt, run_id, node_no from ended_tasks
    union all
    select task_id, state, attempt, run_id, node_no from done
  ) found
  where found.task_id >= coalesce(looked.floor, 0)
  order by found.task_id desc
  limit @limit
) found on true
order by found.task_id desc;

-- name: find_nodes(tenant_id, labels?, lane_ids?, tag?, task_id_max, limit, scan_rows_max, scan_runs_max, task_id_min)
--   -> rows
-- nullable: task_id, run_id, node_no, floor
-- null with task_id: state, attempt
-- Like find_tasks, for nodes without a row of their own among tasks: stored nodes and nodes that have not begun. At
-- most @scan_rows_max stored nodes and @scan_runs_max runs of this tenant are read, with ids from @task_id_min to before @task_id_max.
with looks as materialized (
  select 'taskless' as kind, n.id, n.number, n.is_edge
  from holdfast.newest_ids('taskless', @tenant_id, @task_id_min, @task_id_max, @scan_rows_max) n
  where @labels::text[] is null or @labels && array['skipped', 'upstream_failed', 'completed', 'failed', 'canceled', 'running']
  union all
  select 'run', n.id, 0, n.is_edge
  from holdfast.newest_ids('open runs', @tenant_id, @task_id_min, @task_id_max, @scan_runs_max) n
  where @labels::text[] is null or @labels && array['blocked', 'canceled']
  union all
  select 'run', n.id, 0, n.is_edge
  from holdfast.newest_ids('failed runs', @tenant_id, @task_id_min, @task_id_max, @scan_runs_max) n
  where @labels::text[] is null or 'canceled' = any(@labels)
),
bare as materialized (
  select n.task_id, n.label as state, n.attempt, n.run_id, n.node_no
  from (
    select n.run_id + 1 + n.node_no as task_id, n.run_id, n.node_no, n.attempt, n.tenant_id,
      case n.state when 'k' then 'skipped' when 'u' then 'upstream_failed' when 'c' then 'completed'
        when 'f' then 'failed' when 'x' then 'canceled' else 'running' end as label
    from looks
    cross join lateral (
      select n.* from holdfast.node n where n.run_id = looks.id and n.node_no = looks.number limit 1
    ) n
    where looks.kind = 'taskless' and not looks.is_edge
  ) n
  where n.tenant_id = @tenant_id and n.task_id < @task_id_max
    and (@labels::text[] is null or n.label = any(@labels))
    and ((@lane_ids::int[] is null and @tag::text is null) or exists (
      select
      from holdfast.run r
      join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
      where r.run_id = n.run_id and (@lane_ids::int[] is null or s.lane_ids[n.node_no + 1] = any(@lane_ids))
        and (@tag::text is null or @tag = any(r.tags))
    ))
  limit @limit
),
blocked as materialized (
  select r.run_id + 1 + n.node_no as task_id, case when r.canceled_at is null then 'blocked' else 'canceled' end as state,
    n.attempt, r.run_id, n.node_no
  from (
    select r.*
    from looks
    cross join lateral (select r.* from holdfast.run r where r.run_id = looks.id limit 1) r
    where looks.kind = 'run' and not looks.is_edge
  ) r
  join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
  cross join lateral (
    select g.node_no, coalesce(m.attempt, 0) as attempt
    from (
      select d.node_no, r.run_id + 1 + d.node_no as task_id
      from generate_series(least(r.nodes::bigint, @task_id_max::bigint - r.run_id - 1)::int - 1, 0, -1) as d (node_no)
      offset 0
    ) g
    left join lateral (
      select m.state, m.generation, m.attempt
      from holdfast.node m
      where m.run_id = r.run_id and m.node_no = g.node_no
      limit 1
    ) m on true
    left join lateral (select true as is_there from holdfast.live x where x.task_id = g.task_id limit 1) t on true
    left join lateral (select true as is_there from holdfast.ended x where x.task_id = g.task_id limit 1) e on true
    left join lateral (
      select true as is_there
      from holdfast.attempt x
      where x.task_id = g.task_id and x.state = 'c' and x.generation = coalesce(m.generation, 1)
      limit 1
    ) a on true
    where (m.state is null or m.state in ('b', 'h', 'r'))
      and t.is_there is null and e.is_there is null and a.is_there is null
      and (@lane_ids::int[] is null or s.lane_ids[g.node_no + 1] = any(@lane_ids))
    limit @limit
  ) n
  where r.tenant_id = @tenant_id and r.state <> 'f'
    and (@labels::text[] is null or case when r.canceled_at is null then 'blocked' else 'canceled' end = any(@labels))
    and (r.canceled_at is not null or r.pending > r.active)
    and (@tag::text is null or @tag = any(r.tags))
  limit @limit
),
looked as materialized (
  select max(looks.id + case looks.kind when 'taskless' then 1 + looks.number else 0 end) as floor
  from looks
  where looks.is_edge
)
select found.task_id, found.state, found.attempt, found.run_id, found.node_no, looked.floor
from looked
left join lateral (
  select found.*
  from (
    select task_id, state, attempt, run_id, node_no from bare
    union all
    select task_id, state, attempt, run_id, node_no from blocked
  ) found
  where found.task_id >= coalesce(looked.floor, 0)
  order by found.task_id desc
  limit @limit
) found on true
order by found.task_id desc;

-- name: fill_tasks(task_ids, states, attempts, run_ids[?], node_nos[?]) -> rows
-- nullable: key, started_at, ended_at, due_at, next_retry_at, worker, code, type, message, run_id, node
-- Return names, times and last failures of the found tasks; a definition is read once for all rows of its snapshot.
with page as materialized (
  select *
  from unnest(@task_ids::bigint[], @states::text[], @attempts::int[], @run_ids::bigint[], @node_nos::int[]) as g (task_id, state, attempt, run_id, node_no)
),
placed as materialized (
  select page.*, r.snapshot_id, r.created_at, r.tags, r.priority
  from page
  left join holdfast.run r on r.run_id = page.run_id
),
names as materialized (
  select s.snapshot_id, (d.number - 1)::int as node_no, d.node ->> 'name' as node, d.node ->> 'action' as action,
    d.node ->> 'kind' as kind, s.lane_ids[d.number] as lane_id, s.policy_ids[d.number] as policy_id, s.priorities[d.number] as priority
  from (select distinct snapshot_id from placed) asked
  join holdfast.snapshot s on s.snapshot_id = asked.snapshot_id
  join holdfast.flow f on f.flow_id = s.flow_id
  cross join lateral jsonb_array_elements(f.definition -> 'nodes') with ordinality as d (node, number)
),
filled as materialized (
  select page.*, names.node, names.action, names.kind, t.due_at, t.is_retrying, t.max_retries as live_retries, e.max_retries as ended_retries,
    coalesce(t.priority, e.priority, b.priority, page.priority, names.priority) as its_priority,
    coalesce(b.tags, e.tags, page.tags, '{}') as its_tags, coalesce(b.key, e.key) as key,
    coalesce(b.created_at, page.created_at, e.created_at) as its_created_at,
    coalesce(t.started_at, a.started_at) as started_at, coalesce(e.ended_at, a.ended_at) as ended_at,
    coalesce(t.lane_id, e.lane_id, b.lane_id, names.lane_id) as lane_id,
    coalesce(t.policy_id, e.policy_id, b.policy_id, names.policy_id) as policy_id,
    coalesce(t.worker_id, a.worker_id) as worker_id
  from placed page
  left join holdfast.live t on t.task_id = page.task_id and page.state in ('queued', 'running', 'retrying')
  left join holdfast.ended e on e.task_id = page.task_id and page.state in ('failed', 'canceled')
  left join holdfast.attempt a
    on a.task_id = page.task_id and a.attempt = page.attempt and a.state = 'c' and page.state = 'completed'
  left join lateral (select * from holdfast.body b where b.task_id = page.task_id limit 1) b on true
  left join names on names.snapshot_id = page.snapshot_id and names.node_no = page.node_no
)
select page.task_id::text as task_id, page.state, coalesce(l.action, page.action) as action, coalesce(q.name, '') as queue,
  page.attempt, coalesce(page.live_retries, page.ended_retries, p.max_retries, 0) + 1 as max_attempts,
  page.its_priority as priority, page.its_tags as tags, page.key, page.its_created_at as created_at,
  coalesce(page.started_at, case when page.state in ('failed', 'canceled') then f.started_at end) as started_at,
  page.ended_at, case when not page.is_retrying then page.due_at end as due_at,
  case when page.is_retrying then page.due_at end as next_retry_at, w.name as worker, f.code, f.type, f.message,
  holdfast.instant() as at, page.run_id::text as run_id, page.node,
  case when page.run_id is null then 'task' when page.task_id = page.run_id + 1 + page.node_no
    then coalesce(page.kind, 'task') else 'item' end as kind
from filled page
left join holdfast.lane l on l.lane_id = page.lane_id
left join holdfast.queue q on q.queue_id = l.queue_id
left join holdfast.policy p on p.policy_id = page.policy_id
left join holdfast.worker w on w.worker_id = page.worker_id
left join lateral (
  select f.code, f.type, f.message, f.started_at
  from holdfast.failure f
  where f.task_id = page.task_id
  order by f.attempt desc
  limit 1
) f on true
order by page.task_id desc;

-- name: block_of(tenant_id, place) -> row?
-- Return the newest block that has rows of a tenant before an id, and where in it the ids of spans begin.
select b.first_id, b.middle_id, b.last_id
from holdfast.previous_block(@tenant_id, @place) b;
