-- name: read_events
-- Events after a cursor, in commit-safe order: nothing of a transaction that is still open, so a reader that stopped at
-- (xid, seq) misses nothing and sees nothing twice.
select e.xid::text as xid, e.seq, e.at, n.name as tenant, e.kind, e.task_ids, e.attempts, e.detail::text as detail
from holdfast.event e
join holdfast.tenant n on n.tenant_id = e.tenant_id
where e.tenant_id = $1
  and (e.xid, e.seq) > ($2::text::xid8, $3::bigint)
  and e.xid < pg_snapshot_xmin(pg_current_snapshot())
order by e.xid, e.seq
limit $4;

-- name: add_notes
-- Keep what running attempts said about themselves, if their lease is still theirs.
insert into holdfast.note (task_id, attempt, tenant_id, kind, detail)
select g.task_id, g.attempt, t.tenant_id, g.kind, g.detail::jsonb
from unnest($1::bigint[], $2::int[], $3::uuid[], $4::text[], $5::text[]) with ordinality
  as g (task_id, attempt, lease_token, kind, detail, n)
join holdfast.live t
  on t.task_id = g.task_id and t.attempt = g.attempt and t.lease_token = g.lease_token and t.state = 'r'
where t.task_id = any($1::bigint[])
order by g.n;

-- name: read_notes
-- What the attempts of a task said, in order.
select attempt, at, kind, detail::text as detail
from holdfast.note
where task_id = $1 and tenant_id = $2
order by attempt, seq
limit $3;
