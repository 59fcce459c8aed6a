-- name: find_tenant(name) -> row?
-- nullable: max_running, max_queued
-- Return one tenant by its name, with its limits.
select t.tenant_id, t.name, t.created_at, t.max_running, t.max_queued
from holdfast.tenant t
where t.name = @name;

-- name: tenant_names() -> rows
-- Return the names of all tenants.
select t.name
from holdfast.tenant t
order by t.tenant_id;

-- name: list_tenants(limit) -> rows
-- nullable: max_running, max_queued
-- Return every tenant with its limits and its running and queued tasks; queued tasks are counted up to a bound per
-- lane.
select t.tenant_id, t.name, t.created_at, t.max_running, t.max_queued,
  (select count(*)::int from holdfast.live r where r.state in ('r', 'v') and r.tenant_id = t.tenant_id) as running,
  (
    select coalesce(sum(c.queued), 0)::bigint
    from holdfast.lane l
    cross join lateral (
      select count(*) as queued
      from (select from holdfast.live x where x.state = 'q' and x.lane_id = l.lane_id limit @limit) one
    ) c
    where l.tenant_id = t.tenant_id
  ) as queued
from holdfast.tenant t
order by t.tenant_id;

-- name: create_tenant(name) -> row?
-- nullable: max_running, max_queued
-- Insert a tenant; no row if the name is taken.
insert into holdfast.tenant (name)
values (@name)
on conflict (name) do nothing
returning tenant_id, name, created_at, max_running, max_queued;

-- name: lock_tenant(name) -> row?
-- nullable: max_running, max_queued
-- Lock one tenant by its name until its change is recorded.
select t.tenant_id, t.name, t.created_at, t.max_running, t.max_queued
from holdfast.tenant t
where t.name = @name
for no key update;

-- name: limit_tenant(tenant_id, max_running?, max_queued?) -> row
-- nullable: max_running, max_queued
-- Set both limits of a tenant; null removes one.
update holdfast.tenant t
set max_running = @max_running, max_queued = @max_queued
where t.tenant_id = @tenant_id
returning t.tenant_id, t.name, t.created_at, t.max_running, t.max_queued;

-- name: read_allowance(tenant_id) -> value?
-- nullable: max_queued
-- Return how many tasks a tenant may have queued; null if unlimited.
select t.max_queued
from holdfast.tenant t
where t.tenant_id = @tenant_id;

-- name: count_queued(tenant_id, limit) -> value
-- Return how many tasks of a tenant are queued, counted up to a bound: index entries, lane by lane. Delayed tasks are
-- counted along the index of the tenant's waiting tasks, in which those of other tenants do not come first.
select (
    select coalesce(sum(c.queued), 0)
    from holdfast.lane l
    cross join lateral (
      select count(*) as queued
      from (select from holdfast.live x where x.state = 'q' and x.lane_id = l.lane_id limit @limit) one
    ) c
    where l.tenant_id = @tenant_id
  )::bigint
  + (
    select count(*)
    from (
      select
      from holdfast.live x
      where x.state <> 'q' and x.worker_id is null and x.state = 'w'
        and (x.tenant_id, x.task_id) >= (@tenant_id, 0) and x.tenant_id <= @tenant_id
      limit @limit
    ) waiting
  ) as queued;

-- name: has_key(tenant_id, key) -> value?
-- Return whether an idempotency key is used already.
select exists (select from holdfast.idempotency i where i.tenant_id = @tenant_id and i.key = @key);

-- name: try_tenants(tenant_ids) -> rows
-- Lock limited tenants for claims until this transaction ends, and return those that could be locked. As with queues, a
-- claim never waits.
select n.tenant_id
from unnest(@tenant_ids::int[]) as n (tenant_id)
where pg_try_advisory_xact_lock(1752132969, n.tenant_id);

-- name: lock_tenant_limit(tenant_id) -> nothing
-- Lock one limited tenant for the claim of one task. It waits, because its transaction has no other lock yet.
select pg_advisory_xact_lock(1752132969, @tenant_id);

-- name: remaining_tenant_capacity(tenant_ids) -> rows
-- Return how many tasks limited tenants may start now, counted from leased rows under `try_tenants`, so no counter can
-- drift.
select n.tenant_id,
  n.max_running - (
    select count(*)::int from holdfast.live t where t.state in ('r', 'v') and t.tenant_id = n.tenant_id
  ) as room
from holdfast.tenant n
where n.tenant_id = any(@tenant_ids::int[]) and n.max_running is not null;
