-- name: add_webhook(tenant_id, name, url, kinds?, queues?, actions?, secret, cursor, created_by) -> rows
-- Insert a webhook; no row if the name is taken.
insert into holdfast.webhook (tenant_id, name, url, kinds, queues, actions, secret, cursor, created_by)
values (@tenant_id, @name, @url, @kinds::text[], @queues::text[], @actions::text[], @secret, @cursor, @created_by)
on conflict (tenant_id, name) do nothing
returning webhook_id;

-- name: count_webhooks(tenant_id) -> value
-- Return how many webhooks a tenant has.
select count(*)::int
from holdfast.webhook w
where w.tenant_id = @tenant_id;

-- name: list_webhooks(tenant_id, name?) -> rows
-- nullable: kinds, queues, actions, delivered_at, failed_at, last_error, retry_at, paused_at, paused_by,
--   paused_reason, old_secret_until
-- Return webhooks with their delivery status, without their secrets.
select w.name, w.url, w.kinds, w.queues, w.actions, w.cursor, w.created_at, w.created_by, w.delivered, w.delivered_at,
  w.failures, w.failed_at, w.last_error, case when w.failures > 0 and w.paused_at is null then w.due_at end as retry_at,
  w.paused_at, w.paused_by, w.paused_reason,
  case when w.old_secret_until > holdfast.instant() then w.old_secret_until end as old_secret_until
from holdfast.webhook w
where w.tenant_id = @tenant_id and (@name::text is null or w.name = @name)
order by w.name
limit 1000;

-- name: lock_webhook(tenant_id, name) -> row?
-- nullable: paused_reason, old_secret
-- Lock one webhook, for a change that is audited.
select w.url, w.secret, w.cursor, w.paused_reason,
  (select t.name from holdfast.tenant t where t.tenant_id = w.tenant_id) as tenant,
  case when w.old_secret_until > holdfast.instant() then w.old_secret end as old_secret,
  extract(epoch from holdfast.instant())::double precision as at
from holdfast.webhook w
where w.tenant_id = @tenant_id and w.name = @name
for no key update of w;

-- name: remove_webhook(tenant_id, name) -> nothing
-- Delete a webhook.
delete from holdfast.webhook w
where w.tenant_id = @tenant_id and w.name = @name
returning w.webhook_id;

-- name: rotate_webhook(tenant_id, name, secret, grace_seconds) -> nothing
-- Set another secret; the previous one also signs for @grace_seconds seconds.
update holdfast.webhook w
set old_secret = case when @grace_seconds::double precision > 0 then w.secret end,
  old_secret_until = case when @grace_seconds > 0 then holdfast.instant() + make_interval(secs => @grace_seconds) end,
  secret = @secret
where w.tenant_id = @tenant_id and w.name = @name
returning w.webhook_id;

-- name: pause_webhook(tenant_id, name, actor, reason) -> rows
-- Pause a webhook; a process that is delivering to it loses its lease.
update holdfast.webhook w
set paused_at = holdfast.instant(), paused_by = @actor, paused_reason = @reason, lease_token = null, lease_expires_at = null
where w.tenant_id = @tenant_id and w.name = @name and w.paused_at is null
returning w.webhook_id;

-- name: resume_webhook(tenant_id, name, cursor?) -> rows
-- Resume a webhook, from where it stopped or from a given cursor.
update holdfast.webhook w
set paused_at = null, paused_by = null, paused_reason = null, failures = 0, due_at = holdfast.instant(),
  cursor = coalesce(@cursor, w.cursor)
where w.tenant_id = @tenant_id and w.name = @name and w.paused_at is not null
returning w.webhook_id;

-- name: lease_webhooks(limit, lease_seconds, per_tenant_max, tenant_ids, held, held_max, with_http) -> rows
-- nullable: kinds, queues, actions, old_secret
-- Lease due webhooks that have no holder: at most @per_tenant_max per tenant, so that tenants take turns. @tenant_ids and @held are the tenants
-- and numbers of webhooks that this process is delivering to: tenants with fewer come first, and none gets more than
-- @held_max. Without @with_http only reporters are leased: this process cannot make HTTP requests.
with turn as materialized (
  select n.tenant_id, least(@per_tenant_max::int, @held_max::int - coalesce(h.held, 0)) as most
  from (select distinct w.tenant_id from holdfast.webhook w) n
  left join unnest(@tenant_ids::int[], @held::int[]) as h (tenant_id, held) on h.tenant_id = n.tenant_id
  where coalesce(h.held, 0) < @held_max
  order by coalesce(h.held, 0), random()
),
free as materialized (
  select f.webhook_id
  from turn
  cross join lateral (
    select w.webhook_id
    from holdfast.webhook w
    where w.tenant_id = turn.tenant_id and w.paused_at is null and w.due_at <= holdfast.instant()
      and (w.lease_token is null or w.lease_expires_at <= holdfast.instant())
      and (@with_http::boolean or w.url like 'reporter:%')
    order by w.due_at
    limit turn.most
    for no key update skip locked
  ) f
  limit @limit
)
update holdfast.webhook w
set lease_token = gen_random_uuid(), lease_expires_at = holdfast.instant() + make_interval(secs => @lease_seconds)
from free
where w.webhook_id = free.webhook_id
returning w.webhook_id, w.tenant_id, w.name, w.url, w.kinds, w.queues, w.actions, w.cursor, w.failures, w.lease_token,
  w.secret, case when w.old_secret_until > holdfast.instant() then w.old_secret end as old_secret,
  (select left(i.installation::text, 8) from holdfast.installation i) as installation,
  (select t.name from holdfast.tenant t where t.tenant_id = w.tenant_id) as tenant,
  extract(epoch from holdfast.instant())::double precision as at;

-- name: advance_webhook(webhook_id, lease_token, cursor, delivered, seconds) -> rows
-- Move the cursor past delivered events and extend the lease. No row if the lease was lost.
update holdfast.webhook w
set cursor = @cursor, delivered = w.delivered + @delivered, failures = case when @delivered > 0 then 0 else w.failures end,
  delivered_at = case when @delivered > 0 then holdfast.instant() else w.delivered_at end,
  last_error = case when @delivered > 0 then null else w.last_error end,
  lease_expires_at = holdfast.instant() + make_interval(secs => @seconds)
where w.webhook_id = @webhook_id and w.lease_token = @lease_token and w.lease_expires_at > holdfast.instant()
returning w.webhook_id;

-- name: release_webhook(webhook_id, lease_token, seconds, cursor) -> nothing
-- Move the cursor and release the lease until there may be new events.
update holdfast.webhook w
set cursor = @cursor, lease_token = null, lease_expires_at = null, due_at = holdfast.instant() + make_interval(secs => @seconds)
where w.webhook_id = @webhook_id and w.lease_token = @lease_token
returning w.webhook_id;

-- name: refuse_webhook(webhook_id, lease_token, error, seconds) -> nothing
-- Release a webhook for a moment because this process's own rules forbid its URL: store why, and count no failure.
-- Another process may be allowed to deliver.
update holdfast.webhook w
set lease_token = null, lease_expires_at = null, failed_at = holdfast.instant(), last_error = @error,
  due_at = holdfast.instant() + make_interval(secs => @seconds)
where w.webhook_id = @webhook_id and w.lease_token = @lease_token
returning w.webhook_id;

-- name: fail_webhook(webhook_id, lease_token, last_error, seconds, paused_reason?, actor) -> rows
-- Record that the event after the cursor was not accepted: retry later, or pause with the reason after too many
-- failures.
update holdfast.webhook w
set lease_token = null, lease_expires_at = null, failures = w.failures + 1, failed_at = holdfast.instant(),
  last_error = @last_error, due_at = holdfast.instant() + make_interval(secs => @seconds),
  paused_at = case when @paused_reason::text is not null then holdfast.instant() end,
  paused_by = case when @paused_reason is not null then @actor end, paused_reason = @paused_reason
where w.webhook_id = @webhook_id and w.lease_token = @lease_token and w.lease_expires_at > holdfast.instant()
returning w.failures;

-- name: event_places(task_ids) -> rows
-- nullable: run_id
-- Return the queue, action and run of the tasks of events; for a run, its flow as the action.
select g.task_id, q.name as queue, coalesce(l.action, w.flow) as action, w.run_id
from unnest(@task_ids::bigint[]) as g (task_id)
left join holdfast.ended e on e.task_id = g.task_id
left join holdfast.body b on b.task_id = g.task_id
left join lateral (
  select r.run_id, s.lane_ids[p.node_no + 1] as lane_id, case when r.run_id = g.task_id then o.name end as flow
  from (
    select p.run_id, p.node_no from holdfast.locate_task(g.task_id) p where b.task_id is null
    union all
    select r.run_id, null from holdfast.run r where r.run_id = g.task_id
  ) p
  join holdfast.run r on r.run_id = p.run_id
  join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
  join holdfast.flow o on o.flow_id = s.flow_id
  limit 1
) w on true
left join holdfast.lane l on l.lane_id = coalesce(e.lane_id, b.lane_id, w.lane_id)
left join holdfast.queue q on q.queue_id = l.queue_id;

-- name: take_probes(probe_seconds, limit) -> rows
-- Take the turn to probe some workers: those present that offer a URL and were not probed for a while.
insert into holdfast.probe as p (worker_id, tenant_id, due_at)
select w.worker_id, w.tenant_id, holdfast.instant() + make_interval(secs => @probe_seconds)
from holdfast.worker w
left join holdfast.probe x on x.worker_id = w.worker_id
where w.state in ('active', 'draining') and w.labels ? 'probe_url'
  and (x.worker_id is null or x.due_at <= holdfast.instant())
order by x.due_at nulls first
limit @limit
on conflict (worker_id) do update
set due_at = excluded.due_at
where p.due_at <= holdfast.instant()
returning p.worker_id, p.due_at, (select w.labels->>'probe_url' from holdfast.worker w where w.worker_id = p.worker_id) as url;

-- name: record_probe(worker_id, due_at, is_answered, detail, failures_max) -> nothing
-- Record the result of a probe, unless the worker was probed again since.
update holdfast.probe p
set checked_at = holdfast.instant(), detail = @detail, failures = case when @is_answered::boolean then 0 else p.failures + 1 end,
  is_healthy = case when @is_answered then true when p.failures + 1 >= @failures_max then false else p.is_healthy end
where p.worker_id = @worker_id and p.due_at = @due_at
returning p.is_healthy;
