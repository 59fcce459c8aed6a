-- name: launchable
-- Return the next queued tasks of every action whose workers are launched, at most $1 per lane. Paused queues have
-- none, nor does an action whose breaker is open and not due for a trial. Per launcher, tenants take turns by the slots
-- they use, so that a busy tenant leaves the others their share.
with taken_slots as (
  select s.launcher, s.tenant_id, count(*) as slots
  from holdfast.launch_slot s
  where holdfast.is_slot_held(s)
  group by s.launcher, s.tenant_id
)
select t.task_id, t.attempt + 1 as attempt, t.tenant_id, a.launcher, l.action, q.name as queue, n.name as tenant
from holdfast.action a
join holdfast.lane l on l.tenant_id = a.tenant_id and l.action = a.name
join holdfast.queue q on q.queue_id = l.queue_id and q.paused_at is null
join holdfast.tenant n on n.tenant_id = l.tenant_id
cross join lateral (
  select t.task_id, t.attempt, t.tenant_id, t.priority
  from holdfast.live t
  where t.state = 'q' and t.lane_id = l.lane_id
  order by t.priority, t.task_id
  limit $1
) t
left join taken_slots on taken_slots.launcher = a.launcher and taken_slots.tenant_id = t.tenant_id
left join holdfast.breaker b on b.tenant_id = l.tenant_id and b.action = l.action
where a.launcher is not null and (b.breaker_id is null or b.state <> 'o' or b.trial_at <= holdfast.instant())
order by
  coalesce(taken_slots.slots, 0) + row_number() over (partition by a.launcher, t.tenant_id order by t.priority, t.task_id),
  t.priority, t.task_id;

-- name: take_slot
-- Take the first free slot of a launcher that has $2 slots, for a moment. No row if none is free, or another process
-- took it first.
with free as (
  select n.slot
  from generate_series(1, $2::int) as n (slot)
  left join holdfast.launch_slot s on s.launcher = $1 and s.slot = n.slot
  where s.slot is null or not holdfast.is_slot_held(s)
  order by n.slot
  limit 1
)
insert into holdfast.launch_slot as s (launcher, slot, tenant_id, task_id, attempt, holder, expires_at)
select $1, free.slot, $3, $4, $5, $6, holdfast.instant() + make_interval(secs => $7)
from free
on conflict (launcher, slot) do update
set tenant_id = excluded.tenant_id, task_id = excluded.task_id, attempt = excluded.attempt, holder = excluded.holder,
  expires_at = excluded.expires_at
where not holdfast.is_slot_held(s)
returning s.slot;

-- name: free_slot
-- Release a slot.
delete from holdfast.launch_slot s
where s.holder = $1
returning s.slot;

-- name: free_slots
-- Delete slots whose attempt has ended, or whose time ran out before there was a reservation.
delete from holdfast.launch_slot s
where not holdfast.is_slot_held(s)
returning s.launcher, s.slot;

-- name: launched
-- Store the platform's handle of a launch; the worker may have attached before this.
update holdfast.launch h
set handle = $4, launched_at = holdfast.instant(), looked_at = holdfast.instant(),
  state = case h.state when 'p' then 'l' else h.state end
where h.task_id = $1 and h.attempt = $2 and h.holder = $3
returning h.task_id;

-- name: lock_reservation
-- Lock the reservation of a failed launch, if it is still valid: no worker attached, it has not ended, and it was not
-- canceled.
select t.task_id, t.attempt, t.lease_token, t.policy_id, t.retries, t.losses
from holdfast.live t
where t.task_id = $1 and t.attempt = $2 and t.lease_token = $3 and t.state = 'v'
for update of t;

-- name: fail_launch
-- Count a failed launch under its locked reservation, and free its slot.
with failed as (
  update holdfast.launch h
  set state = 'f', failures = h.failures + 1, error = $4, holder = null
  where h.task_id = $1 and h.attempt = $2 and h.holder = $3
  returning h.failures
),
freed as (
  delete from holdfast.launch_slot s
  where s.holder = $3 and exists (select from failed)
)
select failures
from failed;

-- name: unreserve
-- Take a locked reservation back: no attempt was made, so its number is free again for the next launch, which waits.
with back as (
  update holdfast.live t
  set state = 'w', due_at = holdfast.instant() + make_interval(secs => $4), attempt = t.attempt - 1, lease_token = null,
    lease_expires_at = null, started_at = null
  where t.task_id = $1 and t.attempt = $2 and t.lease_token = $3 and t.state = 'v'
  returning t.task_id, t.tenant_id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select tenant_id, 'task.launch_failed', array[task_id], array[$2::int]
  from back
)
select task_id
from back;

-- name: adopt_launch
-- Take over a launch whose launcher stopped between the reservation and the platform's response: launching again under
-- the same name is the same launch. The new token is valid in addition to the old one.
update holdfast.launch h
set token_hashes = h.token_hashes || array[$2::bytea], launching_until = holdfast.instant() + make_interval(secs => $3)
from holdfast.live t
join holdfast.lane l on l.lane_id = t.lane_id
join holdfast.queue q on q.queue_id = l.queue_id
join holdfast.tenant n on n.tenant_id = t.tenant_id
where (h.task_id, h.attempt) = (
    select o.task_id, o.attempt
    from holdfast.launch o
    where o.state = 'p' and o.launching_until <= holdfast.instant() and o.launcher = any($1::text[])
      and exists (
        select from holdfast.live r
        where r.task_id = o.task_id and r.attempt = o.attempt and r.state = 'v'
          and r.lease_expires_at > holdfast.instant()
      )
    order by o.launching_until
    limit 1
    for update of o skip locked
  )
  and t.task_id = h.task_id
returning h.task_id, h.attempt, h.tenant_id, h.launcher, h.holder, t.lease_token, l.action, q.name as queue,
  n.name as tenant;

-- name: look_at_launches
-- Take the turn to query the platform about at most $3 launches of a launcher to which no worker has attached and that
-- were not queried for $2 seconds.
with due as materialized (
  select h.task_id, h.attempt
  from holdfast.launch h
  where h.state = 'l' and h.launcher = $1
    and h.looked_at <= holdfast.instant() - make_interval(secs => $2)
  order by h.looked_at
  limit $3
  for update of h skip locked
),
seen as (
  update holdfast.launch h
  set looked_at = holdfast.instant()
  from due
  where h.task_id = due.task_id and h.attempt = due.attempt
  returning h.task_id, h.attempt, h.launcher, h.handle, h.launched_at
)
select seen.task_id, seen.attempt, seen.launcher, seen.handle, t.lease_token,
  extract(epoch from holdfast.instant() - seen.launched_at)::double precision as age_seconds
from seen
join holdfast.live t on t.task_id = seen.task_id and t.attempt = seen.attempt and t.state = 'v'
where seen.handle is not null;

-- name: over_launches
-- Return at most $2 launches of ended attempts, and failed launches whose task waits for no launch any more; the least
-- recently checked first. An ended attempt stays ended, so any number of processes may stop them. `is_reported`: the
-- worker reported the end itself, so it stops by itself.
select h.task_id, h.attempt, h.launcher, h.handle, h.state::text as state,
  h.state = 'a' and (
    exists (select from holdfast.attempt a where a.task_id = h.task_id and a.attempt = h.attempt and a.state = 'c')
    or exists (select from holdfast.failure f where f.task_id = h.task_id and f.attempt = h.attempt and f.state = 'f')
  ) as is_reported,
  extract(epoch from holdfast.instant() - h.created_at)::double precision as age_seconds
from holdfast.launch h
where h.launcher = $1
  and not exists (
    select from holdfast.live t
    where t.task_id = h.task_id
      and case when h.state = 'f' then t.attempt = h.attempt - 1 else t.attempt = h.attempt and t.state in ('v', 'r') end
  )
order by h.looked_at, h.task_id, h.attempt
limit $2;

-- name: put_back_launch
-- Move a launch that cannot be stopped now behind the others of its launcher. Changes nothing else.
update holdfast.launch h
set looked_at = holdfast.instant()
where h.task_id = $1 and h.attempt = $2
returning h.task_id;

-- name: forget_launch
-- Delete a launch that has ended on both sides, and its slot. Its request time stays with the attempt, as long as its
-- block exists; a failed launch made no attempt.
with deleted as (
  delete from holdfast.launch h
  where h.task_id = $1 and h.attempt = $2
  returning h.*
),
recorded as (
  insert into holdfast.dispatched (task_id, attempt, tenant_id, at)
  select deleted.task_id, deleted.attempt, deleted.tenant_id, deleted.created_at
  from deleted
  join holdfast.block b on deleted.task_id between b.first_id and b.last_id
  where deleted.state <> 'f'
)
delete from holdfast.launch_slot s
using deleted
where s.holder = deleted.holder;

-- name: forget_tokens
-- Delete expired tokens.
update holdfast.launch h
set token_hashes = '{}'
where h.token_expires_at <= holdfast.instant() and h.token_hashes <> '{}'
returning h.task_id;

-- name: declare_launcher
-- Register what a server can launch, and for which tenants and actions; none named means all.
insert into holdfast.launcher as k (name, kind, slots, tenant_ids, actions, seen_at)
select $1, $2, $3,
  case when $4::text[] <> '{}' then array(select n.tenant_id from holdfast.tenant n where n.name = any($4) order by 1) end,
  nullif($5::text[], '{}'), holdfast.instant()
on conflict (name) do update
set kind = excluded.kind, slots = excluded.slots, tenant_ids = excluded.tenant_ids, actions = excluded.actions,
  seen_at = excluded.seen_at
where (k.kind, k.slots, k.tenant_ids, k.actions)
    is distinct from (excluded.kind, excluded.slots, excluded.tenant_ids, excluded.actions)
  or k.seen_at < excluded.seen_at - interval '5 seconds';

-- name: launchers_wanted
-- Return every launcher that an action names, or that has launches.
select a.launcher
from holdfast.action a
where a.launcher is not null
union
select h.launcher
from holdfast.launch h
where h.launcher <> '';

-- name: read_attach
-- Return why a launched worker cannot attach to its attempt. $3 is the hash of its token.
select t.state::text as state, t.attempt, h.state::text as launch_state, $3::bytea = any(h.token_hashes) as is_known
from holdfast.launch h
left join holdfast.live t on t.task_id = h.task_id
where h.task_id = $1 and h.attempt = $2;

-- name: explain_launch
-- Return the launcher of a task, whether it serves its tenant and action, its slots, and the state of the launch.
select a.launcher, k.slots, k.seen_at,
  l.tenant_id = any(coalesce(k.tenant_ids, array[l.tenant_id])) as is_for_tenant,
  l.action = any(coalesce(k.actions, array[l.action])) as is_for_action,
  (
    select count(*)::int from holdfast.launch_slot s where s.launcher = a.launcher and holdfast.is_slot_held(s)
  ) as taken,
  h.state::text as state, coalesce(h.failures, 0) as failures, h.error, h.launched_at
from holdfast.lane l
join holdfast.action a on a.tenant_id = l.tenant_id and a.name = l.action and a.launcher is not null
left join holdfast.launcher k on k.name = a.launcher
left join holdfast.launch h on h.task_id = $2 and h.attempt = $3
where l.lane_id = $1;

-- name: list_launches
-- Return launches in progress and launches whose attempt has not ended, oldest first.
select h.task_id, h.attempt, h.launcher, l.action, h.state::text as state, h.handle, h.failures, h.error, h.created_at,
  h.launched_at, h.attached_at, s.slot, t.due_at
from holdfast.launch h
left join holdfast.live t on t.task_id = h.task_id
left join holdfast.lane l on l.lane_id = t.lane_id
left join holdfast.launch_slot s on s.holder = h.holder
where h.tenant_id = $1
order by h.created_at, h.task_id
limit $2;
