-- name: lock_audit_head(tenant_id, hash) -> row
-- Lock a tenant's chain for appending, until the transaction ends; begin the chain if there is none. It is the last
-- lock that a transaction takes, so its holder waits for no other lock.
insert into holdfast.audit_head as h (tenant_id, seq, hash)
values (@tenant_id, 0, @hash)
on conflict (tenant_id) do update
set seq = h.seq
returning h.seq, h.hash, holdfast.instant() as at;

-- name: append_audit(tenant_id, previous_seq, seq, hash, at, actor, reason, seqs, verbs, subject_kinds, subject_ids,
--   befores, afters, prev_hashes, hashes) -> rows
-- Append rows and move the head from the row that they follow. No row is returned if the head is elsewhere.
with moved as (
  update holdfast.audit_head h
  set seq = @seq, hash = @hash
  where h.tenant_id = @tenant_id and h.seq = @previous_seq
  returning h.tenant_id
)
insert into holdfast.audit (
  tenant_id, seq, at, actor, verb, subject_kind, subject_id, reason, before, after, prev_hash, hash
)
select moved.tenant_id, g.seq, @at, @actor, g.verb, g.subject_kind, g.subject_id, @reason, g.before::json, g.after::json, g.prev_hash,
  g.hash
from moved
cross join unnest(@seqs::bigint[], @verbs::text[], @subject_kinds::text[], @subject_ids::text[], @befores::text[], @afters::text[], @prev_hashes::bytea[], @hashes::bytea[])
  as g (seq, verb, subject_kind, subject_id, before, after, prev_hash, hash)
returning seq;

-- name: list_audit(tenant_id, before_seq, actor?, verb?, subject_kind?, subject_id?, seconds?, limit, first_seq) ->
--   rows
-- Return a page of the log, newest first, of the rows from @first_seq on: one page reads a bounded number of rows.
select a.tenant_id, a.seq, a.at, a.actor, a.verb, a.subject_kind, a.subject_id, a.reason, a.before::text as before,
  a.after::text as after, a.hash
from holdfast.audit a
where a.tenant_id = @tenant_id and a.seq < @before_seq and a.seq >= @first_seq
  and (@actor::text is null or a.actor = @actor)
  and (@verb::text is null or a.verb = @verb)
  and (@subject_kind::text is null or a.subject_kind = @subject_kind)
  and (@subject_id::text is null or a.subject_id = @subject_id)
  and (@seconds::double precision is null or a.at >= holdfast.instant() - make_interval(secs => @seconds))
order by a.seq desc
limit @limit;

-- name: read_audit_chain(tenant_id, after, limit) -> rows
-- Return the next rows of a chain, in its order, as they were hashed.
select a.tenant_id, a.seq, a.at, a.actor, a.verb, a.subject_kind, a.subject_id, a.reason, a.before::text as before,
  a.after::text as after, a.prev_hash, a.hash
from holdfast.audit a
where a.tenant_id = @tenant_id and a.seq > @after
order by a.seq
limit @limit;

-- name: read_audit_head(tenant_id) -> row?
-- Return the head of a chain, which is stored separately from it.
select h.seq, h.hash
from holdfast.audit_head h
where h.tenant_id = @tenant_id;
