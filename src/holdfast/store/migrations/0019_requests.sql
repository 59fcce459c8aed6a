-- Requests under idempotency keys: what was asked and what was answered, kept for a day.

create table holdfast.request_key (
  tenant_id int not null references holdfast.tenant,
  key text not null,
  digest bytea not null,
  answer bytea,
  created_at timestamptz not null,
  primary key (tenant_id, key)
);

create index request_key_age on holdfast.request_key (created_at);

select holdfast.secure_tenants();
