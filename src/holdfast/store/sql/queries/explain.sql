-- name: explain_task(task_id, tenant_id) -> row?
-- nullable: worker_id, due_at, started_at, ended_at, lease_expires_at, cancel_at, actor, reason, run_id, node_no,
--   item_no, snapshot_id, timeout_seconds, worker_name, worker_version, worker_state, worker_beat_at,
--   worker_ended_at, failure_attempt, failure_retry_at, progress, unknown_effects, undone_effects
-- null with failure_attempt: failure_state, code, type, message, failure_reason, rule, sentence, failure_ended_at,
--   failure_class
-- Return the state of one task, its worker or queue, and how its last failed attempt ended. A live row wins over older
-- ends; a completion counts only in the current generation of its node. A node without a task of its own is not found
-- here.
with place as materialized (
  select w.run_id, w.node_no, w.item_no, r.snapshot_id, r.created_at, s.lane_ids[w.node_no + 1] as lane_id,
    s.policy_ids[w.node_no + 1] as policy_id, coalesce(r.priority, s.priorities[w.node_no + 1]) as priority,
    coalesce(n.generation, 1) as generation
  from holdfast.locate_task(@task_id) w
  join holdfast.run r on r.run_id = w.run_id and r.tenant_id = @tenant_id
  join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
  left join holdfast.node n on n.run_id = w.run_id and n.node_no = w.node_no
),
stand as (
  select case t.state when 'q' then 'queued' when 'v' then 'reserved' when 'r' then 'running'
      else case when t.is_retrying then 'retrying' else 'delayed' end end as position,
    t.lane_id, t.policy_id, t.worker_id, t.priority, t.attempt, t.retries, t.max_retries, t.losses, t.max_losses,
    t.generation, coalesce(
      (select b.created_at from holdfast.body b where b.task_id = t.task_id),
      (select holdfast.ready_since(t.run_id, t.node_no))
    ) as created_at, t.due_at,
    t.started_at, null::timestamptz as ended_at, t.lease_expires_at, t.cancel_at, t.cancel_actor as actor,
    t.cancel_reason as reason, 0 as output_bytes
  from holdfast.live t
  where t.task_id = @task_id and t.tenant_id = @tenant_id
  union all
  select case e.state when 'f' then 'failed' else 'canceled' end, e.lane_id, e.policy_id, null, e.priority, e.attempt,
    e.retries, e.max_retries, e.losses, e.max_losses, e.generation, e.created_at, null, null, e.ended_at, null, null,
    e.actor, e.reason, 0
  from holdfast.ended e
  where e.task_id = @task_id and e.tenant_id = @tenant_id
  union all
  select 'completed', coalesce(b.lane_id, w.lane_id), p.policy_id, a.worker_id, coalesce(b.priority, w.priority),
    a.attempt, 0, p.max_retries, 0, p.max_losses, a.generation, coalesce(b.created_at, w.created_at), null, a.started_at,
    a.ended_at, null, null, null, null, coalesce(length(a.output), 0)
  from holdfast.attempt a
  left join holdfast.body b on b.task_id = a.task_id
  left join place w on true
  join holdfast.policy p on p.policy_id = coalesce(b.policy_id, w.policy_id)
  where a.task_id = @task_id and a.tenant_id = @tenant_id and a.state = 'c'
    and (b.task_id is not null or w.item_no is not null or a.generation = w.generation)
)
select stand.*, w.run_id, w.node_no, w.item_no, w.snapshot_id, holdfast.instant() as at, l.action, l.queue_id, q.name as queue, p.timeout_seconds,
  c.name as worker_name, c.version as worker_version, c.state as worker_state, c.beat_at as worker_beat_at,
  c.ended_at as worker_ended_at,
  f.attempt as failure_attempt, f.state::text as failure_state, f.code, f.type, f.message, f.reason as failure_reason,
  f.rule, f.sentence, f.ended_at as failure_ended_at, f.retry_at as failure_retry_at,
  coalesce(f.class, f.reason) as failure_class,
  (
    select n.detail::text
    from holdfast.note n
    where n.task_id = @task_id and n.attempt = stand.attempt and n.kind = 'progress'
    order by n.seq desc
    limit 1
  ) as progress,
  (
    select array_agg(e.name || coalesce(' (' || e.user_key || ')', '') order by e.sent_at, e.key)
    from holdfast.effect e
    where e.task_id = @task_id and holdfast.effect_state(e) = 'unknown' and e.compensated_by is null
  ) as unknown_effects,
  (
    select array_agg(
      e.name || coalesce(' (' || e.user_key || ')', '') || ' was undone by task ' || e.compensated_by
      order by e.sent_at, e.key
    )
    from holdfast.effect e
    where e.task_id = @task_id and e.compensated_by is not null
  ) as undone_effects
from stand
join holdfast.lane l on l.lane_id = stand.lane_id
join holdfast.queue q on q.queue_id = l.queue_id
join holdfast.policy p on p.policy_id = stand.policy_id
left join holdfast.worker c on c.worker_id = stand.worker_id
left join place w on true
left join lateral (
  select *
  from holdfast.failure f
  where f.task_id = @task_id
  order by f.attempt desc
  limit 1
) f on true
limit 1;

-- name: explain_dead_letters(task_id, tenant_id) -> rows
-- nullable: next_at, campaign_id
-- null with campaign_id: campaign_name, campaign_state
-- Return the unresolved dead letters of a task: the newest in progress, the newest ignored, the newest open; each with
-- the campaign that released it, or that works on its group.
select distinct on (d.kind) d.dead_letter_id, d.state, d.disposition, d.disposition_reason, d.actor, d.dispatches, d.dispatches_max,
  d.changed_at, d.dispatched_at + make_interval(secs => coalesce(d.backoff_seconds, 0)) as next_at,
  'retry' = any(d.recovery_options) as can_retry, c.campaign_id, c.name as campaign_name, c.state as campaign_state
from (
  select d.*, case d.state when 'open' then 3 when 'ignored' then 2 else 1 end as kind
  from holdfast.dead_letter d
  where d.task_id = @task_id and d.tenant_id = @tenant_id and d.state <> 'resolved'
) d
left join holdfast.campaign c on case
  when d.campaign_id is not null then c.campaign_id = d.campaign_id
  else d.state = 'open' and c.tenant_id = d.tenant_id and c.fingerprint = d.fingerprint
    and c.state not in ('completed', 'aborted') and c.upto_id >= d.dead_letter_id
end
order by d.kind, d.dead_letter_id desc;

-- name: locate_task(task_id, tenant_id) -> row?
-- nullable: node_no
-- Return the run and node of an id; a run's own id has no node.
select r.run_id, w.node_no
from (
  select w.run_id, w.node_no from holdfast.locate_task(@task_id) w where w.item_no is null
  union all
  select r.run_id, null from holdfast.run r where r.run_id = @task_id
) w
join holdfast.run r on r.run_id = w.run_id and r.tenant_id = @tenant_id;

-- name: explain_wait(lane_id, task_id, priority, limit, silent_seconds) -> row?
-- nullable: paused_at, paused_by, paused_reason, max_running, starts_per_second, starts_room, tenant_max_running,
--   last_name, last_version, last_state, last_beat_at, last_ended_at, elsewhere_name, elsewhere_version,
--   elsewhere_state, elsewhere_beat_at, elsewhere_queues, carrier_away_since
-- null with carrier_away_since: carrier, carrier_detail
-- Return what a queued or delayed task waits for: the pause and limits of its queue, the workers that can run it and
-- how busy they are, the last such worker, and how many tasks of its lane come first (counted up to a bound).
with crew as materialized (
  select w.*, w.state = 'active' and w.beat_at > holdfast.instant() - make_interval(secs => @silent_seconds) as is_live,
    w.queues is null or q.name = any(w.queues) as is_serving,
    (
      select count(*)
      from holdfast.live t
      where t.state = 'r' and t.due_at is null and t.tenant_id = w.tenant_id and t.worker_id = w.worker_id
    ) as running
  from holdfast.lane l
  join holdfast.queue q on q.queue_id = l.queue_id
  join holdfast.worker w on w.tenant_id = l.tenant_id and l.action = any(w.actions)
  where l.lane_id = @lane_id
    and (w.state in ('active', 'draining') or w.worker_id in (
      select g.worker_id
      from holdfast.worker g
      where g.tenant_id = l.tenant_id and l.action = any(g.actions) and (g.queues is null or q.name = any(g.queues))
        and g.state in ('gone', 'lost')
      order by g.ended_at desc
      limit 1
    ))
)
select q.paused_at, q.paused_by, q.paused_reason, q.max_running, q.starts_per_second,
  case when q.max_running is null then 0 else (
    select count(*)
    from holdfast.live t
    join holdfast.lane l on l.lane_id = t.lane_id
    where t.state in ('r', 'v') and l.queue_id = q.queue_id
  ) end as running,
  floor(holdfast.available_starts(q))::int as starts_room,
  n.name as tenant_name, n.max_running as tenant_max_running,
  case when n.max_running is null then 0 else (
    select count(*)
    from holdfast.live t
    where t.state in ('r', 'v') and t.tenant_id = n.tenant_id
  ) end as tenant_running,
  (select count(*) from crew where is_live and is_serving) as able,
  (select coalesce(sum(slots), 0) from crew where is_live and is_serving) as slots,
  (select coalesce(sum(running), 0)::bigint from crew where is_live and is_serving) as busy,
  last.name as last_name, last.version as last_version, last.state as last_state, last.beat_at as last_beat_at,
  last.ended_at as last_ended_at,
  elsewhere.name as elsewhere_name, elsewhere.version as elsewhere_version, elsewhere.state as elsewhere_state,
  elsewhere.beat_at as elsewhere_beat_at, elsewhere.queues as elsewhere_queues,
  (
    select count(*)
    from (
      select
      from holdfast.live t
      where t.state = 'q' and t.lane_id = @lane_id and (t.priority, t.task_id) < (@priority::smallint, @task_id::bigint)
      limit @limit
    ) a
  ) as ahead,
  wake.carrier, wake.away_since as carrier_away_since, wake.away_detail as carrier_detail
from holdfast.lane own
join holdfast.queue q on q.queue_id = own.queue_id
join holdfast.tenant n on n.tenant_id = own.tenant_id
left join holdfast.wake wake on wake.is_on
left join lateral (
  select *
  from crew
  where is_serving and not is_live
  order by coalesce(ended_at, beat_at) desc
  limit 1
) last on true
left join lateral (
  select *
  from crew
  where is_live and not is_serving
  limit 1
) elsewhere on true
where own.lane_id = @lane_id;
