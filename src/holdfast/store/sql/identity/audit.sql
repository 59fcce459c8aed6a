-- name: lock_audit_head
-- Lock a tenant's chain for appending, until the transaction ends; begin the chain if there is none. It is the last
-- lock that a transaction takes, so its holder waits for no other lock.
insert into holdfast.audit_head as h (tenant_id, seq, hash)
values ($1, 0, $2)
on conflict (tenant_id) do update
set seq = h.seq
returning h.seq, h.hash, holdfast.instant() as at;

-- name: append_audit
-- Append rows and move the head from the row that they follow. No row is returned if the head is elsewhere.
with moved as (
  update holdfast.audit_head h
  set seq = $3, hash = $4
  where h.tenant_id = $1 and h.seq = $2
  returning h.tenant_id
)
insert into holdfast.audit (
  tenant_id, seq, at, actor, verb, subject_kind, subject_id, reason, before, after, prev_hash, hash
)
select moved.tenant_id, g.seq, $5, $6, g.verb, g.subject_kind, g.subject_id, $7, g.before::json, g.after::json, g.prev_hash,
  g.hash
from moved
cross join unnest($8::bigint[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::bytea[], $15::bytea[])
  as g (seq, verb, subject_kind, subject_id, before, after, prev_hash, hash)
returning seq;

-- name: list_audit
-- Return a page of the log, newest first, of the rows from $9 on: one page reads a bounded number of rows.
select a.tenant_id, a.seq, a.at, a.actor, a.verb, a.subject_kind, a.subject_id, a.reason, a.before::text as before,
  a.after::text as after, a.hash
from holdfast.audit a
where a.tenant_id = $1 and a.seq < $2 and a.seq >= $9
  and ($3::text is null or a.actor = $3)
  and ($4::text is null or a.verb = $4)
  and ($5::text is null or a.subject_kind = $5)
  and ($6::text is null or a.subject_id = $6)
  and ($7::double precision is null or a.at >= holdfast.instant() - make_interval(secs => $7))
order by a.seq desc
limit $8;

-- name: read_audit_chain
-- Return the next rows of a chain, in its order, as they were hashed.
select a.tenant_id, a.seq, a.at, a.actor, a.verb, a.subject_kind, a.subject_id, a.reason, a.before::text as before,
  a.after::text as after, a.prev_hash, a.hash
from holdfast.audit a
where a.tenant_id = $1 and a.seq > $2
order by a.seq
limit $3;

-- name: read_audit_head
-- Return the head of a chain, which is stored separately from it.
select h.seq, h.hash
from holdfast.audit_head h
where h.tenant_id = $1;
