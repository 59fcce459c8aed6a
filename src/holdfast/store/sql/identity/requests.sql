-- name: take_request_key(tenant_id, key, digest) -> value?
-- Insert an idempotency key for one request. A concurrent request waits for the first one's transaction and then finds
-- its row.
insert into holdfast.request_key (tenant_id, key, digest, created_at)
values (@tenant_id, @key, @digest, holdfast.instant())
on conflict do nothing
returning true;

-- name: read_request_key(tenant_id, key) -> row?
-- nullable: answer
-- Return the digest and the stored response of an idempotency key.
select k.digest, k.answer
from holdfast.request_key k
where k.tenant_id = @tenant_id and k.key = @key;

-- name: store_response(tenant_id, key, digest, answer) -> nothing
-- Store the response of a request with its key. An existing response is not changed.
update holdfast.request_key
set answer = @answer
where tenant_id = @tenant_id and key = @key and digest = @digest and answer is null
returning true;

-- name: delete_old_request_keys(limit) -> value
-- Delete a batch of keys that are older than a day; return how many.
with deleted as (
  delete from holdfast.request_key k
  where (k.tenant_id, k.key) in (
    select o.tenant_id, o.key
    from holdfast.request_key o
    where o.created_at < holdfast.instant() - interval '1 day'
    order by o.created_at
    limit @limit
  )
  returning k.key
)
select count(*)
from deleted;
