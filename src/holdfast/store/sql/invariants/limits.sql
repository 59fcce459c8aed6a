-- name: limits_hold() -> rows
-- Warning: more tasks of a queue run than its limit allows (B3). This is normal right after lowering the limit.
select q.queue_id, q.name
from holdfast.queue q
join holdfast.lane l on l.queue_id = q.queue_id
join holdfast.live t on t.lane_id = l.lane_id and t.state in ('r', 'v')
where q.max_running is not null
group by q.queue_id, q.name, q.max_running
having count(*) > q.max_running;

-- name: tenant_limits_hold() -> rows
-- Warning: more tasks of a tenant run than its limit allows (B3). This is normal right after lowering the limit.
select n.tenant_id, n.max_running, count(*) as running
from holdfast.tenant n
join holdfast.live t on t.tenant_id = n.tenant_id and t.state in ('r', 'v')
where n.max_running is not null
group by n.tenant_id, n.max_running
having count(*) > n.max_running;

-- name: half_open_breakers_keep_to_their_trials() -> rows
-- No half-open breaker has more trials running and passed than it grants.
select b.breaker_id, b.action
from holdfast.breaker b
join holdfast.lane l on l.tenant_id = b.tenant_id and l.action = b.action
join holdfast.live t on t.lane_id = l.lane_id and t.state in ('r', 'v') and t.started_at >= b.since
where b.state = 'h'
group by b.breaker_id, b.action, b.trials, b.passed
having count(*) + least(b.passed, b.trials - 1) > b.trials;

-- name: quotas_hold() -> rows
-- No window has more retries than its quota allows.
select k.quota_id, k.action, k.queue_id
from holdfast.quota k
join holdfast.tally t on t.guard_id = k.quota_id
where k.retries_max is not null and t.slice between holdfast.current_slice(k.window_seconds) - 12 and holdfast.current_slice(k.window_seconds)
group by k.quota_id, k.action, k.queue_id, k.retries_max
having sum(t.part) > k.retries_max;
