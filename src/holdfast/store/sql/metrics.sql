-- name: count_workers
-- Workers present that serve some queue of a tenant, by state, and how many of them their probes found unhealthy.
select w.state, count(*)::int as workers, coalesce(sum(w.slots), 0)::bigint as slots,
  count(*) filter (where p.is_healthy is false)::int as unhealthy
from holdfast.worker w
left join holdfast.probe p on p.worker_id = w.worker_id
where w.state in ('active', 'draining')
  and exists (
    select
    from holdfast.lane l
    join holdfast.queue q on q.queue_id = l.queue_id
    where l.tenant_id = $1 and l.action = any(w.actions) and (w.queues is null or q.name = any(w.queues))
  )
group by w.state
order by w.state;

-- name: count_events
-- What happened after a batch, by kind, looking at so many batches; and the last one looked at. Events of transactions
-- that are still open are left for later, as for every reader.
with page as materialized (
  select e.xid, e.seq, e.kind, greatest(1, cardinality(e.task_ids)) as events
  from holdfast.event e
  where e.tenant_id = $1
    and (e.xid, e.seq) > ($2::text::xid8, $3::bigint)
    and e.xid < pg_snapshot_xmin(pg_current_snapshot())
  order by e.xid, e.seq
  limit $4
)
select page.kind, sum(page.events)::bigint as events, (select count(*) from page) as looked,
  (select p.xid::text || ':' || p.seq from page p order by p.xid desc, p.seq desc limit 1) as cursor
from page
group by page.kind;
