-- name: audit_rows_are_what_was_written() -> rows
-- The hash of every audited change is that of its fields and of the previous hash.
select a.tenant_id, a.seq
from holdfast.audit a
where a.hash <> sha256(convert_to((
  select string_agg(octet_length(convert_to(u.field, 'UTF8')) || ':' || u.field || ',', '' order by u.n)
  from unnest(array[
    a.tenant_id::text, a.seq::text, (extract(epoch from a.at) * 1000000)::bigint::text, a.actor, a.verb, a.subject_kind,
    a.subject_id, a.reason, a.before::text, a.after::text, encode(a.prev_hash, 'hex')
  ]) with ordinality as u (field, n)
), 'UTF8'));

-- name: audit_rows_follow_one_another() -> rows
-- Every audited change follows the previous one, beginning with the first, and none is missing.
select c.tenant_id, c.seq
from (
  select a.tenant_id, a.seq, a.prev_hash, lag(a.seq, 1, 0::bigint) over chain as last_seq,
    lag(a.hash, 1, decode(repeat('00', 32), 'hex')) over chain as last_hash
  from holdfast.audit a
  window chain as (partition by a.tenant_id order by a.seq)
) c
where c.seq <> c.last_seq + 1 or c.prev_hash <> c.last_hash;

-- name: audit_heads_name_the_last_row() -> rows
-- The end of every audit chain is the row that its head names.
select coalesce(h.tenant_id, a.tenant_id) as tenant_id, h.seq as head, a.seq as last
from holdfast.audit_head h
full join (
  select distinct on (tenant_id) tenant_id, seq, hash
  from holdfast.audit
  order by tenant_id, seq desc
) a on a.tenant_id = h.tenant_id
where (coalesce(h.seq, 0), h.hash) is distinct from (coalesce(a.seq, 0), coalesce(a.hash, decode(repeat('00', 32), 'hex')));

-- name: the_audit_log_is_append_only() -> rows
-- The triggers that refuse changes of the audit log exist and are always on.
select g.name
from (values ('holdfast.audit', 'append_only'), ('holdfast.audit_head', 'append_only'), ('holdfast.audit_head', 'only_forward'))
  as g (relation, name)
left join pg_trigger t on t.tgrelid = to_regclass(g.relation) and t.tgname = g.name and t.tgenabled = 'A'
where t.oid is null;
