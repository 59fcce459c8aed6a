-- name: count_workers(tenant_id) -> rows
-- Return the workers present that serve a queue of a tenant, by state, and how many of them failed their probes.
select w.state, count(*)::int as workers, coalesce(sum(w.slots), 0)::bigint as slots,
  count(*) filter (where p.is_healthy is false)::int as unhealthy
from holdfast.worker w
left join holdfast.probe p on p.worker_id = w.worker_id
where w.state in ('active', 'draining')
  and exists (
    select
    from holdfast.lane l
    join holdfast.queue q on q.queue_id = l.queue_id
    where l.tenant_id = @tenant_id and l.action = any(w.actions) and (w.queues is null or q.name = any(w.queues))
  )
group by w.state
order by w.state;

-- name: count_events(tenant_id, after_xid, after_seq, batches_max) -> rows
-- nullable: kind, xid, seq
-- Count events after a batch by kind, reading at most @batches_max batches of all tenants. The row without a kind is the read
-- limit: the last of those batches or (is_end) the last settled one. Events of open transactions are left for later, as
-- for every reader.
with edge as materialized (
  select e.xid, e.seq, e.is_end
  from holdfast.event_read_limit(@after_xid::text::xid8, @after_seq::bigint, @batches_max) e
)
select e.kind, sum(greatest(1, cardinality(e.task_ids)))::bigint as events, null as xid, null::bigint as seq, false as is_end
from holdfast.event e
where e.tenant_id = @tenant_id
  and (e.xid, e.seq) >= (@after_xid::text::xid8, @after_seq::bigint)
  and (e.xid, e.seq) <= ((select edge.xid from edge), (select edge.seq from edge))
group by e.kind
union all
select null, 0, edge.xid::text, edge.seq, edge.is_end
from edge;
