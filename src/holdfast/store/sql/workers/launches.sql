-- name: launchable(limit) -> rows
-- Return the next queued tasks of every action whose workers are launched, at most @limit per lane. Paused queues have
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
  limit @limit
) t
left join taken_slots on taken_slots.launcher = a.launcher and taken_slots.tenant_id = t.tenant_id
left join holdfast.breaker b on b.tenant_id = l.tenant_id and b.action = l.action
where a.launcher is not null and (b.breaker_id is null or b.state <> 'o' or b.trial_at <= holdfast.instant())
order by
  coalesce(taken_slots.slots, 0) + row_number() over (partition by a.launcher, t.tenant_id order by t.priority, t.task_id),
  t.priority, t.task_id;

-- name: take_slot(launcher, slots, tenant_id, task_id, attempt, holder, slot_seconds) -> rows
-- Take the first free slot of a launcher that has @slots slots, for a moment. No row if none is free, or another process
-- took it first.
with free as (
  select n.slot
  from generate_series(1, @slots::int) as n (slot)
  left join holdfast.launch_slot s on s.launcher = @launcher and s.slot = n.slot
  where s.slot is null or not holdfast.is_slot_held(s)
  order by n.slot
  limit 1
)
insert into holdfast.launch_slot as s (launcher, slot, tenant_id, task_id, attempt, holder, expires_at)
select @launcher, free.slot, @tenant_id, @task_id, @attempt, @holder, holdfast.instant() + make_interval(secs => @slot_seconds)
from free
on conflict (launcher, slot) do update
set tenant_id = excluded.tenant_id, task_id = excluded.task_id, attempt = excluded.attempt, holder = excluded.holder,
  expires_at = excluded.expires_at
where not holdfast.is_slot_held(s)
returning s.slot;

-- name: free_slot(holder) -> nothing
-- Release a slot.
delete from holdfast.launch_slot s
where s.holder = @holder
returning s.slot;

-- name: free_slots() -> nothing
-- Delete slots whose attempt has ended, or whose time ran out before there was a reservation.
delete from holdfast.launch_slot s
where not holdfast.is_slot_held(s)
returning s.launcher, s.slot;

-- name: launched(task_id, attempt, holder, handle) -> nothing
-- Store the platform's handle of a launch; the worker may have attached before this.
update holdfast.launch h
set handle = @handle, launched_at = holdfast.instant(), looked_at = holdfast.instant(),
  state = case h.state when 'p' then 'l' else h.state end
where h.task_id = @task_id and h.attempt = @attempt and h.holder = @holder
returning h.task_id;

-- name: lock_reservation(task_id, attempt, lease_token) -> row?
-- Lock the reservation of a failed launch, if it is still valid: no worker attached, it has not ended, and it was not
-- canceled.
select t.task_id, t.attempt, t.lease_token, t.policy_id, t.retries, t.losses
from holdfast.live t
where t.task_id = @task_id and t.attempt = @attempt and t.lease_token = @lease_token and t.state = 'v'
for update of t;

-- name: fail_launch(task_id, attempt, holder, error) -> value?
-- Count a failed launch under its locked reservation, and free its slot.
with failed as (
  update holdfast.launch h
  set state = 'f', failures = h.failures + 1, error = @error, holder = null
  where h.task_id = @task_id and h.attempt = @attempt and h.holder = @holder
  returning h.failures
),
freed as (
  delete from holdfast.launch_slot s
  where s.holder = @holder and exists (select from failed)
)
select failures
from failed;

-- name: unreserve(task_id, attempt, lease_token, delay_seconds) -> nothing
-- Take a locked reservation back: no attempt was made, so its number is free again for the next launch, which waits.
with back as (
  update holdfast.live t
  set state = 'w', due_at = holdfast.instant() + make_interval(secs => @delay_seconds), attempt = t.attempt - 1, lease_token = null,
    lease_expires_at = null, started_at = null
  where t.task_id = @task_id and t.attempt = @attempt and t.lease_token = @lease_token and t.state = 'v'
  returning t.task_id, t.tenant_id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select tenant_id, 'task.launch_failed', array[task_id], array[@attempt::int]
  from back
)
select task_id
from back;

-- name: adopt_launch(launchers, token_hash, launching_seconds) -> row?
-- Take over a launch whose launcher stopped between the reservation and the platform's response: launching again under
-- the same name is the same launch. The new token is valid in addition to the old one.
update holdfast.launch h
set token_hashes = h.token_hashes || array[@token_hash::bytea], launching_until = holdfast.instant() + make_interval(secs => @launching_seconds)
from holdfast.live t
join holdfast.lane l on l.lane_id = t.lane_id
join holdfast.queue q on q.queue_id = l.queue_id
join holdfast.tenant n on n.tenant_id = t.tenant_id
where (h.task_id, h.attempt) = (
    select o.task_id, o.attempt
    from holdfast.launch o
    where o.state = 'p' and o.launching_until <= holdfast.instant() and o.launcher = any(@launchers::text[])
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

-- name: launches_to_check(launcher, asked_seconds, limit) -> rows
-- Take the turn to query the platform about at most @limit launches of a launcher to which no worker has attached and that
-- were not queried for @asked_seconds seconds.
with due as materialized (
  select h.task_id, h.attempt
  from holdfast.launch h
  where h.state = 'l' and h.launcher = @launcher
    and h.looked_at <= holdfast.instant() - make_interval(secs => @asked_seconds)
  order by h.looked_at
  limit @limit
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

-- name: ended_launches(launcher, limit) -> rows
-- nullable: handle
-- Return at most @limit launches of ended attempts, and failed launches whose task waits for no launch any more; the least
-- recently checked first. An ended attempt stays ended, so any number of processes may stop them. `is_reported`: the
-- worker reported the end itself, so it stops by itself.
select h.task_id, h.attempt, h.launcher, h.handle, h.state::text as state,
  h.state = 'a' and (
    exists (select from holdfast.attempt a where a.task_id = h.task_id and a.attempt = h.attempt and a.state = 'c')
    or exists (select from holdfast.failure f where f.task_id = h.task_id and f.attempt = h.attempt and f.state = 'f')
  ) as is_reported,
  extract(epoch from holdfast.instant() - h.created_at)::double precision as age_seconds
from holdfast.launch h
where h.launcher = @launcher
  and not exists (
    select from holdfast.live t
    where t.task_id = h.task_id
      and case when h.state = 'f' then t.attempt = h.attempt - 1 else t.attempt = h.attempt and t.state in ('v', 'r') end
  )
order by h.looked_at, h.task_id, h.attempt
limit @limit;

-- name: put_back_launch(task_id, attempt) -> nothing
-- Move a launch that cannot be stopped now behind the others of its launcher. Changes nothing else.
update holdfast.launch h
set looked_at = holdfast.instant()
where h.task_id = @task_id and h.attempt = @attempt
returning h.task_id;

-- name: delete_launch(task_id, attempt) -> nothing
-- Delete a launch that has ended on both sides, and its slot. Its request time stays with the attempt, as long as its
-- block exists; a failed launch made no attempt.
with deleted as (
  delete from holdfast.launch h
  where h.task_id = @task_id and h.attempt = @attempt
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

-- name: delete_launch_tokens() -> nothing
-- Delete expired tokens.
update holdfast.launch h
set token_hashes = '{}'
where h.token_expires_at <= holdfast.instant() and h.token_hashes <> '{}'
returning h.task_id;

-- name: declare_launcher(name, kind, slots, tenants, actions) -> nothing
-- Register what a server can launch, and for which tenants and actions; none named means all.
insert into holdfast.launcher as k (name, kind, slots, tenant_ids, actions, seen_at)
select @name, @kind, @slots,
  case when @tenants::text[] <> '{}' then array(select n.tenant_id from holdfast.tenant n where n.name = any(@tenants) order by 1) end,
  nullif(@actions::text[], '{}'), holdfast.instant()
on conflict (name) do update
set kind = excluded.kind, slots = excluded.slots, tenant_ids = excluded.tenant_ids, actions = excluded.actions,
  seen_at = excluded.seen_at
where (k.kind, k.slots, k.tenant_ids, k.actions)
    is distinct from (excluded.kind, excluded.slots, excluded.tenant_ids, excluded.actions)
  or k.seen_at < excluded.seen_at - interval '5 seconds';

-- name: launchers_wanted() -> rows
-- Return every launcher that an action names, or that has launches.
select a.launcher
from holdfast.action a
where a.launcher is not null
union
select h.launcher
from holdfast.launch h
where h.launcher <> '';

-- name: read_attach(task_id, attempt, token_hash) -> row?
-- nullable: state, attempt
-- Return why a launched worker cannot attach to its attempt. @token_hash is the hash of its token.
select t.state::text as state, t.attempt, h.state::text as launch_state, @token_hash::bytea = any(h.token_hashes) as is_known
from holdfast.launch h
left join holdfast.live t on t.task_id = h.task_id
where h.task_id = @task_id and h.attempt = @attempt;

-- name: explain_launch(lane_id, task_id, attempt) -> row?
-- nullable: slots, seen_at, state, error, launched_at
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
left join holdfast.launch h on h.task_id = @task_id and h.attempt = @attempt
where l.lane_id = @lane_id;

-- name: list_launches(tenant_id, limit) -> rows
-- Return launches in progress and launches whose attempt has not ended, oldest first.
select h.task_id, h.attempt, h.launcher, l.action, h.state::text as state, h.handle, h.failures, h.error, h.created_at,
  h.launched_at, h.attached_at, s.slot, t.due_at
from holdfast.launch h
left join holdfast.live t on t.task_id = h.task_id
left join holdfast.lane l on l.lane_id = t.lane_id
left join holdfast.launch_slot s on s.holder = h.holder
where h.tenant_id = @tenant_id
order by h.created_at, h.task_id
limit @limit;
