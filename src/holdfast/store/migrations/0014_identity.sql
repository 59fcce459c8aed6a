-- Identity: API tokens, members who sign in elsewhere, and the secrets of this installation.

-- Of a token's secret only the SHA-256 is here, and it has 256 random bits: who reads this table cannot use it. `token_id`
-- is the part of a token that may be seen. `queues` limits a worker; without it every queue is open to it.
create table holdfast.token (
  token_id text primary key check (token_id ~ '^[0-9a-f]{12}$'),
  tenant_id int not null references holdfast.tenant,
  name text not null check (name ~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$'),
  role text not null check (role in ('viewer', 'operator', 'admin', 'worker')),
  queues text[],
  digest bytea not null check (octet_length(digest) = 32),
  created_by text not null,
  created_at timestamptz not null default holdfast.instant(),
  expires_at timestamptz,
  last_used_at timestamptz,
  revoked_at timestamptz,
  revoked_by text,
  constraint token_queues check (queues is null or role = 'worker'),
  constraint token_revoked check ((revoked_at is null) = (revoked_by is null))
) with (fillfactor = 80);
-- A name stands for one token at a time: it is how the audit log calls whoever used it.
create unique index token_name on holdfast.token (tenant_id, name) where revoked_at is null;

-- Who may sign in with an ID token: one account by its subject, or a whole hosted domain. An account belongs to one
-- tenant, because nothing but the token says which one is meant; its own row wins over that of its domain.
create table holdfast.member (
  member_id int generated always as identity primary key,
  tenant_id int not null references holdfast.tenant,
  issuer text not null check (issuer <> ''),
  subject text check (subject <> ''),
  domain text check (domain <> ''),
  role text not null check (role in ('viewer', 'operator', 'admin', 'worker')),
  name text not null default '',
  added_by text not null,
  added_at timestamptz not null default holdfast.instant(),
  unique (issuer, subject),
  unique (issuer, domain),
  constraint member_which check (num_nonnulls(subject, domain) = 1)
);

-- Made here, once, and different in every installation; nobody types it and no default exists.
create table holdfast.secret (
  purpose text primary key,
  value bytea not null check (octet_length(value) >= 32),
  created_at timestamptz not null default holdfast.instant()
);
revoke all on holdfast.secret from public;
insert into holdfast.secret (purpose, value)
select 'capability', sha256(string_agg(uuid_send(gen_random_uuid()), ''::bytea))
from generate_series(1, 4);
