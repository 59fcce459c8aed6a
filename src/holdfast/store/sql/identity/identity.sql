-- name: create_token
-- Store the digest of a new token. The name must not be that of a token still in use.
insert into holdfast.token (token_id, tenant_id, name, role, queues, digest, created_by, expires_at)
values ($1, $2, $3, $4, $5::text[], $6, $7, holdfast.instant() + make_interval(secs => $8::double precision))
on conflict (tenant_id, name) where revoked_at is null do nothing
returning token_id, created_at, expires_at;

-- name: revoke_token
-- Revoke a token of this tenant, by its id or by the name of a token in use. The first revocation is the one recorded.
update holdfast.token t
set revoked_at = holdfast.instant(), revoked_by = $3
where t.tenant_id = $1 and (t.token_id = $2 or t.name = $2) and t.revoked_at is null
returning t.token_id, t.name, t.role;

-- name: list_tokens
-- Return a page of the tokens of a tenant, newest first, after the one with id $4; without $2 only usable ones.
select t.token_id, t.name, t.role, t.queues, t.created_by, t.created_at, t.expires_at, t.last_used_at, t.revoked_at,
  t.revoked_by, coalesce(t.expires_at <= holdfast.instant(), false) as is_expired
from holdfast.token t
left join holdfast.token c on c.tenant_id = $1 and c.token_id = $4
where t.tenant_id = $1
  and ($4::text is null or t.created_at < c.created_at or (t.created_at = c.created_at and t.token_id > c.token_id))
  and ($2::boolean or t.revoked_at is null and (t.expires_at is null or t.expires_at > holdfast.instant()))
order by t.created_at desc, t.token_id
limit $3;

-- name: read_token
-- Return a usable token by its public part, and whether its last use was more than a minute ago. The caller compares
-- the digest, in constant time.
select t.tenant_id, t.name, t.role, t.queues, t.digest,
  coalesce(t.last_used_at <= holdfast.instant() - interval '1 minute', true) as is_rested
from holdfast.token t
where t.token_id = $1 and t.revoked_at is null and (t.expires_at is null or t.expires_at > holdfast.instant());

-- name: touch_token
-- Record the use of a token, at most once a minute for all servers together.
update holdfast.token t
set last_used_at = holdfast.instant()
where t.token_id = $1 and coalesce(t.last_used_at <= holdfast.instant() - interval '1 minute', true)
returning t.token_id;

-- name: has_token
-- Return whether any usable token exists.
select exists (
  select from holdfast.token t
  where t.revoked_at is null and (t.expires_at is null or t.expires_at > holdfast.instant())
);

-- name: add_member
-- Add an account or a domain. An existing one, of this or another tenant, is not changed.
insert into holdfast.member (tenant_id, issuer, subject, domain, role, name, added_by)
values ($1, $2, $3, $4, $5, $6, $7)
on conflict do nothing
returning member_id, added_at;

-- name: is_member
-- Return whether this account or domain is a member of this tenant.
select exists (
  select from holdfast.member m
  where m.tenant_id = $1 and m.issuer = $2 and (m.subject = $3 or m.domain = $4)
);

-- name: remove_member
-- Remove a member of this tenant.
delete from holdfast.member m
where m.tenant_id = $1 and m.member_id = $2
returning m.member_id, m.issuer, m.subject, m.domain, m.role;

-- name: list_members
-- Return a page of the members of a tenant in the order of addition, after the one with id $3.
select m.member_id, m.issuer, m.subject, m.domain, m.role, m.name, m.added_by, m.added_at
from holdfast.member m
where m.tenant_id = $1 and m.member_id > $3
order by m.member_id
limit $2;

-- name: find_member
-- Return the tenant of an account: by its own row, else by that of its domain. If its domain belongs to a tenant, its
-- own row counts in that tenant only, so that no other tenant can take the account over by naming it.
select m.tenant_id, m.role
from holdfast.member m
left join holdfast.member d on d.issuer = $1 and d.domain = $3
where m.issuer = $1
  and (m.domain = $3 or m.subject = $2 and m.tenant_id = coalesce(d.tenant_id, m.tenant_id))
order by m.subject is null
limit 1;

-- name: read_secret
-- Return a secret of this installation.
select s.value
from holdfast.secret s
where s.purpose = $1;
