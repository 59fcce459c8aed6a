-- name: list_campaigns(tenant_id, campaign_id?, limit, before?) -> rows
-- nullable: ended_at, approved_by, resumed_by, newer_than, rests_until
-- Return campaigns, newest first, or one of them.
select c.campaign_id, c.name, c.fingerprint, c.state, c.reason, c.started_by, c.started_at, c.changed_by, c.changed_at,
  c.ended_at, c.approved_by, c.resumed_by, c.needs_approval, c.newer_than, c.canary, c.at_once, c.leg, c.total, c.released,
  c.succeeded, c.returned, c.failed, c.canceled, c.dropped,
  c.released - c.succeeded - c.returned - c.failed - c.canceled - c.dropped as outstanding, c.note,
  case when c.rests_until > holdfast.instant() then c.rests_until end as rests_until,
  array(
    select distinct q.name
    from holdfast.lane l
    join holdfast.queue q on q.queue_id = l.queue_id
    where l.lane_id = any(c.lane_ids)
    order by 1
  ) as queues
from holdfast.campaign c
where c.tenant_id = @tenant_id and (@campaign_id::int is null or c.campaign_id = @campaign_id) and (@before::int is null or c.campaign_id < @before)
order by c.campaign_id desc
limit @limit;

-- name: plan_campaign(tenant_id, fingerprint, limit, after) -> rows
-- nullable: action, max_running, starts_per_second, last_id
-- null with action: queue, is_paused, tasks, nodes, first_seen, last_seen
-- Return what a campaign over a group would do, by lane: how many tasks, in which queue under which limits. At most @limit
-- dead letters of the group are read, oldest first, after @after. `last_id` is the last of them if there may be more; then
-- a row is returned even if none of them can be re-driven.
with looked as materialized (
  select w.dead_letter_id
  from holdfast.dead_letter w
  where w.tenant_id = @tenant_id and w.fingerprint = @fingerprint and w.state in ('open', 'ignored') and w.dead_letter_id > @after
  order by w.dead_letter_id
  limit @limit
),
far as materialized (
  select case when count(*) >= @limit then max(looked.dead_letter_id) end as last_id
  from looked
),
lanes as materialized (
  select l.action, q.name as queue, q.paused_at is not null as is_paused, q.max_running, q.starts_per_second,
    count(*)::int as tasks, count(d.run_id)::int as nodes, min(d.opened_at) as first_seen, max(d.opened_at) as last_seen
  from looked
  cross join lateral (
    select d.run_id, d.opened_at, d.lane_id from holdfast.redrivable_dead_letters d where d.dead_letter_id = looked.dead_letter_id limit 1
  ) d
  join holdfast.lane l on l.lane_id = d.lane_id
  join holdfast.queue q on q.queue_id = l.queue_id
  group by l.action, q.queue_id, q.name
)
select lanes.action, lanes.queue, lanes.is_paused, lanes.max_running, lanes.starts_per_second, lanes.tasks, lanes.nodes,
  lanes.first_seen, far.last_id,
  -- Includes dead letters beyond the bound: the newest was opened last.
  case when far.last_id is null then lanes.last_seen else (
    select n.opened_at
    from holdfast.dead_letter n
    where n.tenant_id = @tenant_id and n.fingerprint = @fingerprint and n.state in ('open', 'ignored')
    order by n.dead_letter_id desc
    limit 1
  ) end as last_seen
from far
left join lanes on true
where lanes.action is not null or far.last_id is not null
order by lanes.tasks desc, lanes.action;

-- name: group_versions(tenant_id, fingerprint, silent_seconds) -> row
-- Return the versions of the workers on which the group failed, and of the present workers of the tenant that can run
-- its actions.
select coalesce(array_agg(distinct w.version) filter (where w.worker_id is not null), '{}') as failed_on,
  array(
    select distinct p.version
    from holdfast.worker p
    where p.tenant_id = @tenant_id and p.state = 'active' and p.beat_at > holdfast.instant() - make_interval(secs => @silent_seconds)
      and p.actions && (
        select array_agg(distinct l.action)
        from holdfast.dead_letter d
        join holdfast.lane l on l.lane_id = d.lane_id
        where d.tenant_id = @tenant_id and d.fingerprint = @fingerprint
      )
  ) as present
from holdfast.dead_letter d
join holdfast.failure f on f.task_id = d.task_id and f.attempt = d.attempts
left join holdfast.worker w on w.worker_id = f.worker_id
where d.tenant_id = @tenant_id and d.fingerprint = @fingerprint;

-- name: lane_versions(lane_ids, silent_seconds, tenant_id) -> rows
-- Return the versions of the present workers of a tenant that can run the actions of some lanes.
select distinct w.version
from holdfast.worker w
where w.tenant_id = @tenant_id and w.state = 'active' and w.beat_at > holdfast.instant() - make_interval(secs => @silent_seconds)
  and w.actions && array(select l.action from holdfast.lane l where l.lane_id = any(@lane_ids::int[]));

-- name: campaign_state(campaign_id) -> value?
-- Return the state of one campaign.
select c.state
from holdfast.campaign c
where c.campaign_id = @campaign_id;

-- name: campaign_of_group(tenant_id, fingerprint) -> row?
-- Return the open campaign over a group, if there is one.
select c.campaign_id, c.state
from holdfast.campaign c
where c.tenant_id = @tenant_id and c.fingerprint = @fingerprint and c.state not in ('completed', 'aborted');

-- name: group_runs(tenant_id, fingerprint, runs_max, dead_letters_max, after) -> rows
-- Return some of the runs with re-drivable dead letters of a group, oldest first, and how many there are. At most @dead_letters_max
-- dead letters are read, after @after.
with looked as materialized (
  select w.dead_letter_id
  from holdfast.dead_letter w
  where w.tenant_id = @tenant_id and w.fingerprint = @fingerprint and w.state in ('open', 'ignored') and w.dead_letter_id > @after
  order by w.dead_letter_id
  limit @dead_letters_max
)
select d.run_id, (count(*) over ())::int as runs
from looked
cross join lateral (
  select d.run_id from holdfast.redrivable_dead_letters d where d.dead_letter_id = looked.dead_letter_id limit 1
) d
where d.run_id is not null
group by d.run_id
order by d.run_id
limit @runs_max;

-- name: group_effects(tenant_id, fingerprint, reset_task_ids, limit, after) -> rows
-- Count the effects of the re-drivable tasks of a group, and of those that are re-driven with them (@reset_task_ids): effects with a
-- receipt, which a re-drive does not repeat, and effects without an answer, which it may. Some of both can be
-- compensated instead. At most @limit dead letters are read, after @after.
with looked as materialized (
  select w.dead_letter_id
  from holdfast.dead_letter w
  where w.tenant_id = @tenant_id and w.fingerprint = @fingerprint and w.state in ('open', 'ignored') and w.dead_letter_id > @after
  order by w.dead_letter_id
  limit @limit
)
select e.name, count(*) filter (where e.state = 'd' and e.compensated_by is null)::int as receipts,
  count(*) filter (where e.state in ('p', 'u') and e.compensated_by is null)::int as unknown,
  count(*) filter (where e.state <> 'r' and e.compensation is not null and e.compensated_by is null)::int as compensable
from (
  select d.task_id
  from looked
  cross join lateral (
    select d.task_id from holdfast.redrivable_dead_letters d where d.dead_letter_id = looked.dead_letter_id limit 1
  ) d
  union
  select unnest(@reset_task_ids::bigint[])
) t
join holdfast.effect e on e.tenant_id = @tenant_id and e.task_id = t.task_id
group by e.name
order by e.name;
