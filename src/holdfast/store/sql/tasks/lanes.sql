-- name: ensure_queue
-- Intern a queue by name. Used only for a lane that was not found, because an insert with a conflict draws an id too.
insert into holdfast.queue (tenant_id, name)
values ($1, $2)
on conflict (tenant_id, name) do nothing;

-- name: ensure_lane
-- Intern a (tenant, queue, action).
insert into holdfast.lane (tenant_id, queue_id, action)
select $1, q.queue_id, $3
from holdfast.queue q
where q.tenant_id = $1 and q.name = $2
on conflict (tenant_id, queue_id, action) do nothing;

-- name: find_lane
-- Return the lane of a (tenant, queue, action).
select l.lane_id
from holdfast.lane l
join holdfast.queue q on q.queue_id = l.queue_id
where l.tenant_id = $1 and q.name = $2 and l.action = $3;

-- name: ensure_policy
-- Intern a policy by the digest of its content.
insert into holdfast.policy (tenant_id, digest, max_retries, max_losses, timeout_seconds, content)
values ($1, $2, $3, $4, $5, $6::jsonb)
on conflict (tenant_id, digest) do nothing;

-- name: find_policy
-- Return the policy with this digest.
select policy_id
from holdfast.policy
where tenant_id = $1 and digest = $2;

-- name: read_policies
-- Return the content of policies, for a process that has not cached them yet.
select policy_id, content::text as content
from holdfast.policy
where policy_id = any($1::int[]);

-- name: read_lanes
-- Return action and queue names of these lanes, and whether the action has a breaker.
select l.lane_id, l.action, q.name as queue, n.name as tenant, l.tenant_id,
  exists (select from holdfast.breaker b where b.tenant_id = l.tenant_id and b.action = l.action) as is_guarded
from holdfast.lane l
join holdfast.queue q on q.queue_id = l.queue_id
join holdfast.tenant n on n.tenant_id = l.tenant_id
where l.lane_id = any($1::int[]);

-- name: declare_action
-- Store the last declaration of an action by a worker, so that SQL callers need only its name, and the launcher of its
-- workers, if any. An unchanged declaration, repeated by every worker that starts, draws no id.
insert into holdfast.action as a (tenant_id, name, queue, policy_id, version, launcher, priority, seen_at)
select $1, $2::text, $3::text, $4::int, $5::text, $6::text, $7::smallint, holdfast.instant()
where not exists (
  select from holdfast.action a
  where a.tenant_id = $1 and a.name = $2::text
    and (a.queue, a.policy_id, a.version, a.launcher, a.priority)
      is not distinct from ($3::text, $4::int, $5::text, $6::text, $7::smallint)
)
on conflict (tenant_id, name) do update
set queue = excluded.queue, policy_id = excluded.policy_id, version = excluded.version, launcher = excluded.launcher,
  priority = excluded.priority, seen_at = excluded.seen_at
where (a.queue, a.policy_id, a.version, a.launcher, a.priority)
  is distinct from (excluded.queue, excluded.policy_id, excluded.version, excluded.launcher, excluded.priority);

-- name: read_action
-- Return queue, policy and priority that workers last declared for an action.
select a.queue, a.policy_id, a.priority, p.content::text as content
from holdfast.action a
join holdfast.policy p on p.policy_id = a.policy_id
where a.tenant_id = $1 and a.name = $2;
