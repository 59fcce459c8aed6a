-- Webhooks: events delivered to URLs of others, each by one holder at a time; and probes: what workers answer when asked.

-- Everything up to `cursor` was delivered or not wanted. The lease says who delivers now: its token is on every write, so
-- whoever lost it moves nothing. `failures` counts those of the event after the cursor. Secrets are kept as they are,
-- because they sign; nothing shows them again.
create table holdfast.webhook (
  webhook_id int generated always as identity primary key,
  tenant_id int not null references holdfast.tenant,
  name text not null check (name ~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$'),
  url text not null,
  kinds text[],
  queues text[],
  actions text[],
  secret text not null,
  old_secret text,
  old_secret_until timestamptz,
  cursor text not null,
  created_at timestamptz not null default holdfast.instant(),
  created_by text not null,
  due_at timestamptz not null default holdfast.instant(),
  lease_token uuid,
  lease_expires_at timestamptz,
  delivered bigint not null default 0,
  delivered_at timestamptz,
  failures int not null default 0 check (failures >= 0),
  failed_at timestamptz,
  last_error text,
  paused_at timestamptz,
  paused_by text,
  paused_reason text,
  unique (tenant_id, name),
  constraint webhook_lease check ((lease_token is null) = (lease_expires_at is null)),
  constraint webhook_pause check ((paused_at is null) = (paused_by is null) and (paused_at is null or lease_token is null)),
  constraint webhook_secrets check ((old_secret is null) = (old_secret_until is null))
) with (fillfactor = 50);

-- What a worker answered at the URL it registered as label `probe_url`. A row per worker that offers one; gone with it.
create table holdfast.probe (
  worker_id bigint primary key references holdfast.worker on delete cascade,
  tenant_id int not null default 1 references holdfast.tenant,
  due_at timestamptz not null,
  checked_at timestamptz,
  failures int not null default 0 check (failures >= 0),
  is_healthy boolean,
  detail text not null default ''
) with (fillfactor = 50);
