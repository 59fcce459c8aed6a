-- name: find_tenant
-- One tenant by its name, with its limits.
select t.tenant_id, t.name, t.created_at, t.max_running, t.max_queued
from holdfast.tenant t
where t.name = $1;

-- name: tenant_names
-- What tenants are called.
select t.name
from holdfast.tenant t
order by t.tenant_id;

-- name: list_tenants
-- Every tenant with its limits, and what of its work is live; queued work is counted to a bound.
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
-- A tenant of a new name; nothing where the name is taken.
insert into holdfast.tenant (name)
values ($1)
on conflict (name) do nothing
returning tenant_id, name, created_at, max_running, max_queued;

-- name: lock_tenant
-- One tenant by its name, held until its change is recorded.
select t.tenant_id, t.name, t.created_at, t.max_running, t.max_queued
from holdfast.tenant t
where t.name = $1
for no key update;

-- name: limit_tenant
-- Set both limits of a tenant; null lifts one.
update holdfast.tenant t
set max_running = $2, max_queued = $3
where t.tenant_id = $1
returning t.tenant_id, t.name, t.created_at, t.max_running, t.max_queued;

-- name: read_allowance
-- How much work a tenant may have queued; null for as much as it likes.
select t.max_queued
from holdfast.tenant t
where t.tenant_id = $1;

-- name: count_queued
-- How many tasks of a tenant are queued, counted to a bound: index entries, lane by lane. Those that wait for their time
-- are counted along the index of what the tenant has waiting, in which other tenants' tasks do not come before.
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
-- Whether an idempotency key stands for something already.
select exists (select from holdfast.idempotency i where i.tenant_id = $1 and i.key = $2);

-- name: try_tenants
-- Serialise claims of limited tenants until this transaction ends: those that could be locked. As with queues, a claim
-- waits for nobody.
select n.tenant_id
from unnest($1::int[]) as n (tenant_id)
where pg_try_advisory_xact_lock(1752132969, n.tenant_id);

-- name: lock_tenant_limit
-- The same for a named task of a limited tenant, which waits: its transaction holds nothing yet.
select pg_advisory_xact_lock(1752132969, $1);

-- name: remaining_tenant_capacity
-- How many tasks limited tenants may start now. Counted from leased rows under `try_tenants`: nothing to leak.
select n.tenant_id,
  n.max_running - (
    select count(*)::int from holdfast.live t where t.state in ('r', 'v') and t.tenant_id = n.tenant_id
  ) as room
from holdfast.tenant n
where n.tenant_id = any($1::int[]) and n.max_running is not null;
