-- name: read_events(tenant_id, xid, seq, limit, passed_max) -> rows
-- nullable: kind, task_ids, attempts, detail
-- null with kind: at
-- Return events from a batch on, in commit-safe order: nothing of a transaction that is still open, so a reader that
-- stopped at (xid, seq) misses nothing; it skips what it has read of that batch. At most @passed_max batches of all tenants are
-- read. A page that is not full ends with a row without a kind, the read limit: the last of those batches, or (is_end)
-- the last settled one.
with edge as materialized (
  select e.xid, e.seq, e.is_end
  from holdfast.event_read_limit(@xid::text::xid8, @seq::bigint, @passed_max) e
)
(
  select e.xid::text as xid, e.seq, e.at, e.kind, e.task_ids, e.attempts, e.detail::text as detail, false as is_end
  from holdfast.event e
  where e.tenant_id = @tenant_id
    and (e.xid, e.seq) >= (@xid::text::xid8, @seq::bigint)
    and (e.xid, e.seq) <= ((select edge.xid from edge), (select edge.seq from edge))
  order by e.xid, e.seq
  limit @limit
)
union all
(
  select edge.xid::text, edge.seq, null, null, null, null, null, edge.is_end
  from edge
)
limit @limit;

-- name: read_run_events(run_id, tenant_id, xid, seq, limit, passed_max) -> rows
-- nullable: xid, node_no, item, detail
-- null with xid: seq, number, at, kind, task_id, attempt
-- Return events of one run, its nodes and their items, from the next batches of all events, at most @passed_max of all tenants;
-- none older than the run. Every row also has the read limit (is_end: the last settled batch), whether the run has
-- ended, the transaction below which all are settled (horizon), and the one above which none had begun when the run was
-- read (tail).
with run as materialized (
  select r.run_id, r.nodes, r.state::text as state, greatest(@xid::text::xid8, r.began) as from_xid,
    case when @xid::text::xid8 >= r.began then @seq::bigint else 0 end as from_seq
  from holdfast.run r
  where r.run_id = @run_id and r.tenant_id = @tenant_id
),
edge as materialized (
  select e.xid, e.seq, e.is_end
  from run
  cross join lateral holdfast.event_read_limit(run.from_xid, run.from_seq, @passed_max) e
),
page as materialized (
  select e.xid, e.seq, e.at, e.kind, e.task_ids, e.attempts, e.detail
  from holdfast.event e
  where e.tenant_id = @tenant_id
    and (e.xid, e.seq) >= ((select run.from_xid from run), (select run.from_seq from run))
    and (e.xid, e.seq) <= ((select edge.xid from edge), (select edge.seq from edge))
  order by e.xid, e.seq
  limit @limit
),
last as materialized (
  select page.xid, page.seq, false as is_end
  from page
  where (select count(*) from page) >= @limit
  union all
  select edge.xid, edge.seq, edge.is_end
  from edge
  where (select count(*) from page) < @limit
  order by xid desc, seq desc
  limit 1
),
events as (
  select page.xid, page.seq, g.number, page.at, page.kind, g.task_id, g.attempt, page.detail,
    coalesce(n.node_no, (g.task_id - run.run_id - 1)::int) as node_no, (g.task_id - n.items_first)::int as item
  from run
  cross join page
  cross join lateral unnest(page.task_ids, page.attempts) with ordinality as g (task_id, attempt, number)
  left join lateral (
    select n.node_no, n.items_first
    from holdfast.item_span n
    where n.run_id = run.run_id and g.task_id > run.run_id + run.nodes
      and g.task_id between n.items_first and n.items_first + n.items - 1
    limit 1
  ) n on true
  where g.task_id between run.run_id and run.run_id + run.nodes or n.node_no is not null
)
select run.state, holdfast.event_position(pg_snapshot_xmin(pg_current_snapshot()))::text as horizon,
  holdfast.event_position(pg_snapshot_xmax(pg_current_snapshot()))::text as tail, last.xid::text as last_xid, last.seq as last_seq, last.is_end,
  events.xid::text as xid, events.seq, events.number, events.at, events.kind, events.task_id, events.attempt, events.node_no, events.item,
  events.detail::text as detail
from run
cross join last
left join events on true
order by events.xid, events.seq, events.number;

-- name: add_notes(task_ids, attempts, lease_tokens, kinds, details) -> nothing
-- Store the notes of running attempts, if their lease is still valid.
insert into holdfast.note (task_id, attempt, tenant_id, kind, detail)
select g.task_id, g.attempt, t.tenant_id, g.kind, g.detail::jsonb
from unnest(@task_ids::bigint[], @attempts::int[], @lease_tokens::uuid[], @kinds::text[], @details::text[]) with ordinality
  as g (task_id, attempt, lease_token, kind, detail, n)
join holdfast.live t
  on t.task_id = g.task_id and t.attempt = g.attempt and t.lease_token = g.lease_token and t.state = 'r'
where t.task_id = any(@task_ids::bigint[])
order by g.n;

-- name: read_notes(task_id, tenant_id, limit, attempt?, after_attempt, after_seq) -> rows
-- Return the notes of the attempts of a task, in order.
select attempt, seq, at, kind, detail::text as detail
from holdfast.note
where task_id = @task_id and tenant_id = @tenant_id and (@attempt::int is null or attempt = @attempt) and (attempt, seq) > (@after_attempt::int, @after_seq::bigint)
order by attempt, seq
limit @limit;

-- name: event_tail() -> value?
-- Return the cursor after all events that are settled now: a reader that starts here sees only later ones.
select e.xid::text || ':' || e.seq
from holdfast.event_read_limit(holdfast.event_position(pg_snapshot_xmin(pg_current_snapshot())), 0, 1) e;

-- name: log_lines(task_ids, attempts) -> rows
-- nullable: type, code, message, sentence
-- Return what a line of the live log shows about each (task, attempt): its action, the duration of the attempt, how it
-- failed; for a run, its flow.
select g.task_id, g.attempt, coalesce(l.action, w.flow) as action,
  extract(epoch from coalesce(f.ended_at - f.started_at, a.ended_at - a.started_at))::double precision as took_seconds,
  f.type, f.code, f.message, f.sentence
from unnest(@task_ids::bigint[], @attempts::int[]) as g (task_id, attempt)
left join holdfast.failure f on f.task_id = g.task_id and f.attempt = g.attempt
left join holdfast.attempt a on a.task_id = g.task_id and a.attempt = g.attempt
left join holdfast.ended e on e.task_id = g.task_id
left join holdfast.body b on b.task_id = g.task_id
left join lateral (
  select s.lane_ids[w.node_no + 1] as lane_id, case when r.run_id = g.task_id then o.name end as flow
  from (
    select w.run_id, w.node_no from holdfast.locate_task(g.task_id) w where b.task_id is null
    union all
    select r.run_id, null from holdfast.run r where r.run_id = g.task_id
  ) w
  join holdfast.run r on r.run_id = w.run_id
  join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
  join holdfast.flow o on o.flow_id = s.flow_id
  limit 1
) w on true
left join holdfast.lane l on l.lane_id = coalesce(e.lane_id, b.lane_id, w.lane_id);
