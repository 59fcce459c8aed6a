-- Identity: API tokens, members who sign in with an identity provider, secrets, and requests under idempotency keys.

-- API tokens. Only the SHA-256 of a token's secret is stored, and the secret has 256 random bits: a reader of this
-- table cannot use it. token_id is the public part of the token. `queues` limits a worker; null: all queues.
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
-- A name stands for one token at a time: the audit log names the actor by it.
create unique index token_name on holdfast.token (tenant_id, name) where revoked_at is null;

-- The actors that an actor stands for: itself, the creator of the token of that name, and so on. Revoked tokens
-- count: a name that is used again is the same actor.
create function holdfast.actor_lineage(of_tenant_id int, of_actor text) returns setof text
  language sql stable
  begin atomic
    with recursive lineage (actor) as (
      select of_actor
      union
      select t.created_by
      from lineage l
      join holdfast.token t on t.tenant_id = of_tenant_id and t.name = substr(l.actor, 7)
      where l.actor like 'token:%'
    )
    select actor
    from lineage;
  end;

-- Whether two actors are one person as far as is known: one created the token of the other, or both tokens come from
-- one account that signed in over HTTP. Approval by a second person asks this.
create function holdfast.is_same_person(of_tenant_id int, one_actor text, other_actor text) returns boolean
  language sql stable
  return exists (
    select
    from holdfast.actor_lineage(of_tenant_id, one_actor) one
    join holdfast.actor_lineage(of_tenant_id, other_actor) other on other = one
    where one in (one_actor, other_actor) or one not like 'cli:%'
  );

-- Who may sign in with an ID token: one account by its subject, or a whole hosted domain. An account belongs to one
-- tenant, because only the token says which one is meant. The row of an account takes precedence over that of its
-- domain.
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

-- Secrets of this installation. Generated here once: different in every installation, never typed, without a default.
create table holdfast.secret (
  purpose text primary key,
  value bytea not null check (octet_length(value) >= 32),
  created_at timestamptz not null default holdfast.instant()
);
revoke all on holdfast.secret from public;
insert into holdfast.secret (purpose, value)
select 'capability', sha256(string_agg(uuid_send(gen_random_uuid()), ''::bytea))
from generate_series(1, 4);

-- HTTP requests with an idempotency key: what was asked and what was answered. Kept for a day.
create table holdfast.request_key (
  tenant_id int not null references holdfast.tenant,
  key text not null,
  digest bytea not null,
  answer bytea,
  created_at timestamptz not null,
  primary key (tenant_id, key)
);
create index request_key_age on holdfast.request_key (created_at);
