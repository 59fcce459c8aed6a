-- name: find_tenant
-- Return one tenant by its name, with its limits.
select t.tenant_id, t.name, t.created_at, t.max_running, t.max_queued
from holdfast.tenant t
where t.name = $1;

-- name: tenant_names
-- Return the names of all tenants.
select t.name
from holdfast.tenant t
order by t.tenant_id;

-- name: list_tenants
-- Return every tenant with its limits and its running and queued tasks; queued tasks are counted up to a bound per
-- lane.
select t.tenant_id, t.name, t.created_at, t.max_running, t.max_queued,
  (select count(*)::int from holdfast.live r where r.state in ('r', 'v') and r.tenant_id = t.tenant_id) as running,
  (
    select coalesce(sum(c.queued), 0)::bigint
    from holdfast.lane l
    cross join lateral (
      select count(*) as queued
      from (select from holdfast.live x where x.state = 'q' and x.lane_id = l.lane_id limit $1) one
    ) c
    where l.tenant_id = t.tenant_id
  ) as queued
from holdfast.tenant t
order by t.tenant_id;

-- name: create_tenant
-- Insert a tenant; no row if the name is taken.
insert into holdfast.tenant (name)
values ($1)
on conflict (name) do nothing
returning tenant_id, name, created_at, max_running, max_queued;

-- name: lock_tenant
-- Lock one tenant by its name until its change is recorded.
select t.tenant_id, t.name, t.created_at, t.max_running, t.max_queued
from holdfast.tenant t
where t.name = $1
for no key update;

-- name: limit_tenant
-- Set both limits of a tenant; null removes one.
update holdfast.tenant t
set max_running = $2, max_queued = $3
where t.tenant_id = $1
returning t.tenant_id, t.name, t.created_at, t.max_running, t.max_queued;

-- name: read_allowance
-- Return how many tasks a tenant may have queued; null if unlimited.
select t.max_queued
from holdfast.tenant t
where t.tenant_id = $1;

-- name: count_queued
-- Return how many tasks of a tenant are queued, counted up to a bound: index entries, lane by lane. Delayed tasks are
-- counted along the index of the tenant's waiting tasks, in which those of other tenants do not come first.
select (
    select coalesce(sum(c.queued), 0)
    from holdfast.lane l
    cross join lateral (
      select count(*) as queued
      from (select from holdfast.live x where x.state = 'q' and x.lane_id = l.lane_id limit $2) one
    ) c
    where l.tenant_id = $1
  )::bigint
  + (
    select count(*)
    from (
      select
      from holdfast.live x
      where x.state <> 'q' and x.worker_id is null and x.state = 'w'
        and (x.tenant_id, x.task_id) >= ($1, 0) and x.tenant_id <= $1
      limit $2
    ) waiting
  ) as queued;

-- name: has_key
-- Return whether an idempotency key is used already.
select exists (select from holdfast.idempotency i where i.tenant_id = $1 and i.key = $2);

-- name: try_tenants
-- Lock limited tenants for claims until this transaction ends, and return those that could be locked. As with queues, a
-- claim never waits.
select n.tenant_id
from unnest($1::int[]) as n (tenant_id)
where pg_try_advisory_xact_lock(1752132969, n.tenant_id);

-- name: lock_tenant_limit
-- Lock one limited tenant for the claim of one task. It waits, because its transaction has no other lock yet.
select pg_advisory_xact_lock(1752132969, $1);

-- name: remaining_tenant_capacity
-- Return how many tasks limited tenants may start now, counted from leased rows under `try_tenants`, so no counter can
-- drift.
select n.tenant_id,
  n.max_running - (
    select count(*)::int from holdfast.live t where t.state in ('r', 'v') and t.tenant_id = n.tenant_id
  ) as room
from holdfast.tenant n
where n.tenant_id = any($1::int[]) and n.max_running is not null;
