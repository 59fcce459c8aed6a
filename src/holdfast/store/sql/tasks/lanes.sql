-- name: ensure_queue(tenant_id, name) -> nothing
-- Intern a queue by name. Used only for a lane that was not found, because an insert with a conflict draws an id too.
insert into holdfast.queue (tenant_id, name)
values (@tenant_id, @name)
on conflict (tenant_id, name) do nothing;

-- name: ensure_lane(tenant_id, name, action) -> nothing
-- Intern a (tenant, queue, action).
insert into holdfast.lane (tenant_id, queue_id, action)
select @tenant_id, q.queue_id, @action
from holdfast.queue q
where q.tenant_id = @tenant_id and q.name = @name
on conflict (tenant_id, queue_id, action) do nothing;

-- name: find_lane(tenant_id, name, action) -> value?
-- Return the lane of a (tenant, queue, action).
select l.lane_id
from holdfast.lane l
join holdfast.queue q on q.queue_id = l.queue_id
where l.tenant_id = @tenant_id and q.name = @name and l.action = @action;

-- name: ensure_policy(tenant_id, digest, max_retries, max_losses, timeout_seconds?, content) -> nothing
-- Intern a policy by the digest of its content.
insert into holdfast.policy (tenant_id, digest, max_retries, max_losses, timeout_seconds, content)
values (@tenant_id, @digest, @max_retries, @max_losses, @timeout_seconds, @content::jsonb)
on conflict (tenant_id, digest) do nothing;

-- name: find_policy(tenant_id, digest) -> value?
-- Return the policy with this digest.
select policy_id
from holdfast.policy
where tenant_id = @tenant_id and digest = @digest;

-- name: read_policies(policy_ids) -> rows
-- Return the content of policies, for a process that has not cached them yet.
select policy_id, content::text as content
from holdfast.policy
where policy_id = any(@policy_ids::int[]);

-- name: read_lanes(lane_ids) -> rows
-- Return action and queue names of these lanes, and whether the action has a breaker.
select l.lane_id, l.action, q.name as queue, n.name as tenant, l.tenant_id,
  exists (select from holdfast.breaker b where b.tenant_id = l.tenant_id and b.action = l.action) as is_guarded
from holdfast.lane l
join holdfast.queue q on q.queue_id = l.queue_id
join holdfast.tenant n on n.tenant_id = l.tenant_id
where l.lane_id = any(@lane_ids::int[]);

-- name: declare_action(tenant_id, action, queue, policy_id, version, launcher?, priority) -> nothing
-- Store the last declaration of an action by a worker, so that SQL callers need only its name, and the launcher of its
-- workers, if any. An unchanged declaration, repeated by every worker that starts, draws no id.
insert into holdfast.action as a (tenant_id, name, queue, policy_id, version, launcher, priority, seen_at)
select @tenant_id, @action::text, @queue::text, @policy_id::int, @version::text, @launcher::text, @priority::smallint, holdfast.instant()
where not exists (
  select from holdfast.action a
  where a.tenant_id = @tenant_id and a.name = @action::text
    and (a.queue, a.policy_id, a.version, a.launcher, a.priority)
      is not distinct from (@queue::text, @policy_id::int, @version::text, @launcher::text, @priority::smallint)
)
on conflict (tenant_id, name) do update
set queue = excluded.queue, policy_id = excluded.policy_id, version = excluded.version, launcher = excluded.launcher,
  priority = excluded.priority, seen_at = excluded.seen_at
where (a.queue, a.policy_id, a.version, a.launcher, a.priority)
  is distinct from (excluded.queue, excluded.policy_id, excluded.version, excluded.launcher, excluded.priority);

-- name: read_action(tenant_id, action) -> row?
-- Return queue, policy and priority that workers last declared for an action.
select a.queue, a.policy_id, a.priority, p.content::text as content
from holdfast.action a
join holdfast.policy p on p.policy_id = a.policy_id
where a.tenant_id = @tenant_id and a.name = @action;
