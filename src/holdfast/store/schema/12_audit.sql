-- The audit log: every privileged change with actor, reason, before and after. One chain of hashes per tenant.
--
-- `hash` covers the row and prev_hash, so a row cannot be changed, removed or moved without breaking every later one.
-- Texts and JSON are kept as they were hashed (`json`, because `jsonb` would rewrite them).

create table holdfast.audit (
  tenant_id int not null references holdfast.tenant,
  seq bigint not null check (seq > 0),
  at timestamptz not null,
  actor text not null,
  verb text not null,
  subject_kind text not null,
  subject_id text not null,
  reason text not null,
  before json not null,
  after json not null,
  prev_hash bytea not null,
  hash bytea not null,
  primary key (tenant_id, seq),
  constraint audit_hashes check (octet_length(hash) = 32 and octet_length(prev_hash) = 32)
);
create index audit_subject on holdfast.audit (tenant_id, subject_kind, subject_id, seq desc);

-- The end of each chain. Its row is the lock that orders writers, and it shows when the tail of the chain was cut
-- off.
create table holdfast.audit_head (
  tenant_id int primary key references holdfast.tenant,
  seq bigint not null check (seq >= 0),
  hash bytea not null check (octet_length(hash) = 32)
);

-- Append-only. A role that may drop these triggers can still tamper; the hashes then show it, and an anchor kept
-- elsewhere shows it even if all hashes were computed again.
create function holdfast.refuse_audit_change() returns trigger language plpgsql as $$
begin
  raise exception 'the audit log is append-only: % on % is refused', lower(tg_op), tg_table_name
    using errcode = 'restrict_violation';
end $$;

create trigger append_only before update or delete or truncate on holdfast.audit
  for each statement execute function holdfast.refuse_audit_change();
alter table holdfast.audit enable always trigger append_only;

create trigger append_only before delete or truncate on holdfast.audit_head
  for each statement execute function holdfast.refuse_audit_change();
alter table holdfast.audit_head enable always trigger append_only;

create trigger only_forward before update on holdfast.audit_head
  for each row when (new.seq < old.seq or (new.seq = old.seq and new.hash <> old.hash) or new.tenant_id <> old.tenant_id)
  execute function holdfast.refuse_audit_change();
alter table holdfast.audit_head enable always trigger only_forward;

revoke update, delete, truncate on holdfast.audit from public, current_user;
revoke delete, truncate on holdfast.audit_head from public, current_user;
