-- name: create_token(token_id, tenant_id, name, role, queues?, digest, created_by, expires_seconds?) -> row?
-- nullable: expires_at
-- Store the digest of a new token. The name must not be that of a token still in use.
insert into holdfast.token (token_id, tenant_id, name, role, queues, digest, created_by, expires_at)
values (@token_id, @tenant_id, @name, @role, @queues::text[], @digest, @created_by, holdfast.instant() + make_interval(secs => @expires_seconds::double precision))
on conflict (tenant_id, name) where revoked_at is null do nothing
returning token_id, created_at, expires_at;

-- name: revoke_token(tenant_id, token_id, actor) -> rows
-- Revoke a token of this tenant, by its id or by the name of a token in use. The first revocation is the one recorded.
update holdfast.token t
set revoked_at = holdfast.instant(), revoked_by = @actor
where t.tenant_id = @tenant_id and (t.token_id = @token_id or t.name = @token_id) and t.revoked_at is null
returning t.token_id, t.name, t.role;

-- name: list_tokens(tenant_id, with_ended, limit, after?) -> rows
-- nullable: queues, expires_at, last_used_at, revoked_at, revoked_by
-- Return a page of the tokens of a tenant, newest first, after the one with id @after; without @with_ended only usable ones.
select t.token_id, t.name, t.role, t.queues, t.created_by, t.created_at, t.expires_at, t.last_used_at, t.revoked_at,
  t.revoked_by, coalesce(t.expires_at <= holdfast.instant(), false) as is_expired
from holdfast.token t
left join holdfast.token c on c.tenant_id = @tenant_id and c.token_id = @after
where t.tenant_id = @tenant_id
  and (@after::text is null or t.created_at < c.created_at or (t.created_at = c.created_at and t.token_id > c.token_id))
  and (@with_ended::boolean or t.revoked_at is null and (t.expires_at is null or t.expires_at > holdfast.instant()))
order by t.created_at desc, t.token_id
limit @limit;

-- name: read_token(token_id) -> row?
-- nullable: queues
-- Return a usable token by its public part, and whether its last use was more than a minute ago. The caller compares
-- the digest, in constant time.
select t.tenant_id, t.name, t.role, t.queues, t.digest,
  coalesce(t.last_used_at <= holdfast.instant() - interval '1 minute', true) as is_rested
from holdfast.token t
where t.token_id = @token_id and t.revoked_at is null and (t.expires_at is null or t.expires_at > holdfast.instant());

-- name: touch_token(token_id) -> nothing
-- Record the use of a token, at most once a minute for all servers together.
update holdfast.token t
set last_used_at = holdfast.instant()
where t.token_id = @token_id and coalesce(t.last_used_at <= holdfast.instant() - interval '1 minute', true)
returning t.token_id;

-- name: has_token() -> value?
-- Return whether any usable token exists.
select exists (
  select from holdfast.token t
  where t.revoked_at is null and (t.expires_at is null or t.expires_at > holdfast.instant())
);

-- name: add_member(tenant_id, issuer, subject?, domain?, role, name, added_by) -> row?
-- Add an account or a domain. An existing one, of this or another tenant, is not changed.
insert into holdfast.member (tenant_id, issuer, subject, domain, role, name, added_by)
values (@tenant_id, @issuer, @subject, @domain, @role, @name, @added_by)
on conflict do nothing
returning member_id, added_at;

-- name: is_member(tenant_id, issuer, subject?, domain?) -> value?
-- Return whether this account or domain is a member of this tenant.
select exists (
  select from holdfast.member m
  where m.tenant_id = @tenant_id and m.issuer = @issuer and (m.subject = @subject or m.domain = @domain)
);

-- name: remove_member(tenant_id, member_id) -> row?
-- nullable: subject, domain
-- Remove a member of this tenant.
delete from holdfast.member m
where m.tenant_id = @tenant_id and m.member_id = @member_id
returning m.member_id, m.issuer, m.subject, m.domain, m.role;

-- name: list_members(tenant_id, limit, after) -> rows
-- nullable: subject, domain
-- Return a page of the members of a tenant in the order of addition, after the one with id @after.
select m.member_id, m.issuer, m.subject, m.domain, m.role, m.name, m.added_by, m.added_at
from holdfast.member m
where m.tenant_id = @tenant_id and m.member_id > @after
order by m.member_id
limit @limit;

-- name: find_member(issuer, subject, domain?) -> row?
-- Return the tenant of an account: by its own row, else by that of its domain. If its domain belongs to a tenant, its
-- own row counts in that tenant only, so that no other tenant can take the account over by naming it.
select m.tenant_id, m.role
from holdfast.member m
left join holdfast.member d on d.issuer = @issuer and d.domain = @domain
where m.issuer = @issuer
  and (m.domain = @domain or m.subject = @subject and m.tenant_id = coalesce(d.tenant_id, m.tenant_id))
order by m.subject is null
limit 1;

-- name: read_secret(purpose) -> value
-- Return a secret of this installation.
select s.value
from holdfast.secret s
where s.purpose = @purpose;
