-- name: start_campaign(tenant_id, fingerprint, name, reason, started_by, needs_approval, newer_than?, canary, at_once)
--   -> row?
-- Start a campaign over the dead letters of a group that can be re-driven now. One open campaign per group; without
-- such a dead letter none starts.
with counted as materialized (
  select count(*)::int as total, max(d.dead_letter_id) as upto_id, array_agg(distinct d.lane_id) as lane_ids
  from holdfast.redrivable_dead_letters d
  where d.tenant_id = @tenant_id and d.fingerprint = @fingerprint
),
inserted as (
  insert into holdfast.campaign (
    tenant_id, fingerprint, name, reason, started_by, changed_by, needs_approval, newer_than, canary, at_once, state,
    upto_id, lane_ids, total
  )
  select @tenant_id, @fingerprint, @name, @reason, @started_by, @started_by, @needs_approval, @newer_than, @canary, @at_once,
    case when @needs_approval then 'awaiting_approval' when @newer_than::text is not null then 'awaiting_version' else 'canary' end,
    counted.upto_id, counted.lane_ids, counted.total
  from counted
  where counted.total > 0
  on conflict (tenant_id, fingerprint) where state not in ('completed', 'aborted') do nothing
  returning campaign_id, tenant_id, total
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'campaign.started', '{}', '{}',
    jsonb_build_object('campaign_id', campaign_id, 'actor', @started_by::text, 'reason', @reason::text, 'letters', total)
  from inserted
)
select campaign_id
from inserted;

-- name: moving_campaigns(limit, campaign_id) -> rows
-- Return the next page of campaigns that a pass may advance: those in progress, and those with released dead letters
-- that have not ended.
select c.campaign_id, c.state
from holdfast.campaign c
where c.campaign_id > @campaign_id and (
    c.state in ('awaiting_version', 'canary', 'ramp')
    or exists (select from holdfast.campaign_letter m where m.campaign_id = c.campaign_id and m.outcome is null)
  )
order by c.campaign_id
limit @limit;

-- name: take_campaign_turn(turn_seconds) -> row?
-- Take the turn to advance campaigns, for at most @turn_seconds seconds, unless another process has it or all campaigns rest.
-- Returns its end, which identifies the turn, and the campaign after which to continue.
update holdfast.campaign_turn t
set rests_until = holdfast.instant() + make_interval(secs => @turn_seconds)
where t.rests_until <= holdfast.instant()
returning t.rests_until, t.campaign_id;

-- name: end_campaign_turn(rests_until, seconds, campaign_id) -> nothing
-- End the turn: no process advances campaigns for @seconds seconds, and the next turn continues after campaign @campaign_id.
-- `rests_until = @rests_until` proves that the turn is still the caller's.
update holdfast.campaign_turn t
set rests_until = holdfast.instant() + make_interval(secs => @seconds), campaign_id = @campaign_id
where t.rests_until = @rests_until
returning t.campaign_id;

-- name: lock_campaign(campaign_id) -> row?
-- nullable: newer_than
-- Lock a campaign, unless it rests after a failed pass or another process has locked it.
select c.campaign_id, c.tenant_id, c.fingerprint, c.name, c.state, c.reason, c.started_by, c.newer_than, c.canary,
  c.at_once, c.upto_id, c.lane_ids, c.leg, c.released, c.looked_to, c.passed_by,
  exists (
    select from holdfast.lane l
    join holdfast.queue q on q.queue_id = l.queue_id
    where l.lane_id = any(c.lane_ids) and q.paused_at is null
  ) as has_open_queue
from holdfast.campaign c
where c.campaign_id = @campaign_id and (c.rests_until is null or c.rests_until <= holdfast.instant())
for update of c skip locked;

-- name: rest_campaign(campaign_id, rest_seconds_max, failed) -> nothing
-- Let a campaign rest for @rest_seconds_max seconds after a failed pass, with a note for display.
update holdfast.campaign c
set rests_until = holdfast.instant() + make_interval(secs => @rest_seconds_max),
  note = case when c.state in ('awaiting_version', 'canary', 'ramp') then @failed else c.note end
where c.campaign_id = @campaign_id
returning c.campaign_id;

-- name: collect_campaign(campaign_id, actor, leg) -> row
-- Count the outcomes of released dead letters. A dead letter whose task failed again is parked: the new one replaces
-- it. One whose item was replaced by items that completed is resolved with them. One that its completed run bypassed
-- proves nothing, and is dropped. Requires the campaign's lock, so the rows do not move and can be joined by ctid: a
-- join by key could compare all released dead letters with each other.
with ended as materialized (
  select m.ctid as place, m.leg,
    case
      when d.state = 'resolved' and d.disposition <> 'superseded' then 'succeeded'
      when d.state is distinct from 'retrying' or d.campaign_id is distinct from m.campaign_id then 'dropped'
      when (e.state = 'f' or k.state = 'f') and n.fingerprint = c.fingerprint then 'returned'
      when e.state = 'f' or k.state = 'f' or r.state = 'f' then 'failed'
      when e.state = 'x' or r.state = 'x' then 'canceled'
      when p.items_first is not null and o.state = 'c' then 'succeeded'
      when r.state = 'c' and o.state in ('k', 'u') then 'dropped'
      when r.state = 'c' and o.state = 'f' then 'failed'
      when r.state = 'c' then 'succeeded'
    end as outcome,
    d.state = 'retrying' and d.campaign_id = m.campaign_id as is_out
  from holdfast.campaign_letter m
  join holdfast.campaign c on c.campaign_id = m.campaign_id
  left join holdfast.dead_letter d on d.dead_letter_id = m.dead_letter_id
  left join holdfast.ended e on e.task_id = m.task_id
  left join holdfast.run r on r.run_id = d.run_id
  left join holdfast.node k on k.run_id = d.run_id and k.node_no = d.node_no and d.task_id = d.run_id + 1 + d.node_no
  left join holdfast.node o on o.run_id = d.run_id and o.node_no = d.node_no
  left join holdfast.past_items p on p.run_id = d.run_id and p.node_no = d.node_no
    and d.task_id between p.items_first and p.items_first + p.items - 1
  left join lateral (
    select n.fingerprint
    from holdfast.dead_letter n
    where n.task_id = m.task_id
    order by n.dead_letter_id desc
    limit 1
  ) n on true
  where m.campaign_id = @campaign_id and m.outcome is null
),
noted as (
  update holdfast.campaign_letter m
  set outcome = ended.outcome
  from ended
  where m.ctid = ended.place and m.campaign_id = @campaign_id and m.outcome is null and ended.outcome is not null
  returning m.dead_letter_id, m.leg, ended.outcome, ended.is_out
),
closed as (
  update holdfast.dead_letter d
  set state = case when noted.outcome in ('succeeded', 'dropped') then 'resolved' else 'ignored' end,
    disposition = case noted.outcome
      when 'succeeded' then 'retry_succeeded'
      when 'dropped' then 'superseded'
      else 'retry_failed'
    end,
    disposition_reason = case noted.outcome
      when 'succeeded' then 'dead letter superseded by a success'
      when 'dropped' then 'its run completed without it'
      when 'canceled' then 'its task or run was canceled'
      else 'its task failed again in a campaign'
    end,
    actor = @actor, wants_sweep = false, changed_at = holdfast.instant()
  from noted
  where d.dead_letter_id = noted.dead_letter_id and noted.is_out
    and d.state = 'retrying'
  returning d.tenant_id, d.task_id, d.attempts, d.state, d.disposition, d.disposition_reason
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'dead_letter.' || state, array_agg(task_id), array_agg(attempts),
    jsonb_build_object('actor', @actor::text, 'reason', disposition_reason, 'disposition', disposition, 'campaign_id', @campaign_id::int)
  from closed
  group by tenant_id, state, disposition, disposition_reason
)
update holdfast.campaign c
set succeeded = c.succeeded + s.succeeded, returned = c.returned + s.returned, failed = c.failed + s.failed,
  canceled = c.canceled + s.canceled, dropped = c.dropped + s.dropped,
  leg_released = c.leg_released - s.leg_dropped, leg_succeeded = c.leg_succeeded + s.leg_succeeded,
  leg_returned = c.leg_returned + s.leg_returned, leg_failed = c.leg_failed + s.leg_failed
from (
  select count(*) filter (where outcome = 'succeeded') as succeeded, count(*) filter (where outcome = 'returned') as returned,
    count(*) filter (where outcome = 'failed') as failed, count(*) filter (where outcome = 'canceled') as canceled,
    count(*) filter (where outcome = 'dropped') as dropped,
    count(*) filter (where outcome = 'succeeded' and leg = @leg) as leg_succeeded,
    count(*) filter (where outcome = 'returned' and leg = @leg) as leg_returned,
    count(*) filter (where outcome = 'failed' and leg = @leg) as leg_failed,
    count(*) filter (where outcome = 'dropped' and leg = @leg) as leg_dropped
  from noted
) s
where c.campaign_id = @campaign_id
returning c.leg_released, c.leg_succeeded, c.leg_returned, c.leg_failed,
  (select count(*)::int from ended where outcome is null and leg = @leg) as outstanding;

-- name: next_campaign_dead_letters(tenant_id, fingerprint, last_dead_letter_id, campaign_id, after_dead_letter_id, limit)
--   -> row
-- nullable: looked_to
-- Return what a campaign finds among the next @limit dead letters of its group after @after_dead_letter_id, oldest first: those that may be
-- released, and whether some wait with a paused queue or run. The range condition uses the index of unresolved dead
-- letters: with the id alone, the planner may scan all dead letters ever. Each row is checked by key (`offset 0` keeps
-- the subqueries from being joined): a join would compare all dead letters of a large group with all that were
-- released.
with looked as materialized (
  select d.dead_letter_id, d.run_id, d.lane_id
  from holdfast.dead_letter d
  where (d.tenant_id, d.fingerprint, d.dead_letter_id) > (@tenant_id, @fingerprint, @after_dead_letter_id)
    and (d.tenant_id, d.fingerprint, d.dead_letter_id) <= (@tenant_id, @fingerprint, @last_dead_letter_id)
    and d.state in ('open', 'ignored')
  order by d.tenant_id, d.fingerprint, d.dead_letter_id
  limit @limit
),
found as materialized (
  select l.dead_letter_id, l.run_id,
    exists (
      select from holdfast.lane a
      join holdfast.queue q on q.queue_id = a.queue_id
      where a.lane_id = l.lane_id and q.paused_at is not null
      offset 0
    )
    or exists (
      select from holdfast.run r
      where r.run_id = l.run_id and r.state = 'o' and r.paused_at is not null
      offset 0
    ) as is_paused
  from looked l
  where exists (
      select from holdfast.redrivable_dead_letters g
      where g.dead_letter_id = l.dead_letter_id
      offset 0
    )
    and not exists (
      select from holdfast.campaign_letter m
      where m.campaign_id = @campaign_id and m.dead_letter_id = l.dead_letter_id
      offset 0
    )
)
select (select count(*)::int from looked) as looked, (select max(dead_letter_id) from looked) as looked_to,
  coalesce(bool_or(is_paused), false) as has_paused,
  coalesce(array_agg(dead_letter_id order by dead_letter_id) filter (where not is_paused), '{}') as letters,
  coalesce(array_agg(run_id order by dead_letter_id) filter (where not is_paused), '{}') as runs
from found;

-- name: store_campaign_position(campaign_id, looked_to, passed_by) -> nothing
-- Store how far a campaign has read, and whether it skipped waiting dead letters. Requires its lock.
update holdfast.campaign c
set looked_to = @looked_to, passed_by = @passed_by
where c.campaign_id = @campaign_id and (c.looked_to, c.passed_by) is distinct from (@looked_to, @passed_by)
returning c.campaign_id;

-- name: take_campaign_dead_letters(tenant_id, fingerprint, dead_letter_id, campaign_id, dead_letter_ids) -> rows
-- nullable: run_id, node_no
-- Lock dead letters of a campaign (@dead_letter_ids), oldest first, as far as it may still release them. Rows are found by key and
-- filtered under the lock, each checked by key for an earlier release (`offset 0`), so the plan does not depend on
-- statistics.
with found as materialized (
  select d.dead_letter_id, d.task_id, d.run_id, d.node_no, d.state, d.dispatches
  from holdfast.dead_letter d
  where d.dead_letter_id = any(array(
      select g.dead_letter_id
      from unnest(@dead_letter_ids::bigint[]) as k (dead_letter_id)
      cross join lateral (
        select g.dead_letter_id
        from holdfast.redrivable_dead_letters g
        where g.dead_letter_id = k.dead_letter_id and g.tenant_id = @tenant_id and g.fingerprint = @fingerprint and g.dead_letter_id <= @dead_letter_id
        limit 1
      ) g
    ))
  order by d.dead_letter_id
  for update of d skip locked
)
select d.dead_letter_id, d.task_id, d.run_id, d.node_no, d.state,
  case when d.state = 'ignored' then 0 else d.dispatches end as dispatches
from found d
where d.state in ('open', 'ignored') and not exists (
    select from holdfast.campaign_letter m
    where m.campaign_id = @campaign_id and m.dead_letter_id = d.dead_letter_id
    offset 0
  )
order by d.dead_letter_id;

-- name: note_released(campaign_id, leg, dead_letter_ids, task_ids, is_outs, looked_to, passed_by) -> nothing
-- Record the dead letters that a campaign released, including those of other groups that were released with their run.
-- Those that could not be released are dropped and do not count for the canary. Also stores how far the campaign has
-- read, as `store_campaign_position` does. Requires the campaign's lock.
with noted as (
  insert into holdfast.campaign_letter (campaign_id, dead_letter_id, task_id, leg, outcome)
  select @campaign_id, g.dead_letter_id, g.task_id, @leg, case when g.is_out then null else 'dropped' end
  from unnest(@dead_letter_ids::bigint[], @task_ids::bigint[], @is_outs::boolean[]) as g (dead_letter_id, task_id, is_out)
  returning outcome
)
update holdfast.campaign c
set released = c.released + s.released, leg_released = c.leg_released + s.released - s.dropped,
  dropped = c.dropped + s.dropped, total = greatest(c.total, c.released + s.released), looked_to = @looked_to, passed_by = @passed_by
from (
  select count(*) as released, count(*) filter (where outcome = 'dropped') as dropped
  from noted
) s
where c.campaign_id = @campaign_id
returning c.released;

-- name: move_campaign(campaign_id, from_state, to_state, note, actor) -> nothing
-- Store the new state of a campaign and what it waits for. Requires its lock; the state that it leaves is the guard.
with moved as (
  update holdfast.campaign c
  set state = @to_state, note = @note, changed_at = case when c.state = @to_state then c.changed_at else holdfast.instant() end,
    changed_by = case when c.state = @to_state then c.changed_by else @actor end,
    ended_at = case when @to_state in ('completed', 'aborted') then holdfast.instant() end
  where c.campaign_id = @campaign_id and c.state = @from_state and (c.state, c.note) is distinct from (@to_state, @note)
  returning c.tenant_id, c.campaign_id, c.state, c.note
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'campaign.' || state, '{}', '{}',
    jsonb_build_object('campaign_id', campaign_id, 'actor', @actor::text, 'note', note)
  from moved
  where @from_state <> @to_state
)
select campaign_id
from moved;

-- name: approve_campaign(campaign_id, tenant_id, actor) -> row?
-- Approve a campaign as another person than the one who started it, or resumed it since. A token counts as the person
-- who created it over HTTP, so a second token is not a second person; tokens created on the database's own command line
-- count as themselves.
with approved as (
  update holdfast.campaign c
  set approved_by = @actor, changed_by = @actor, changed_at = holdfast.instant(), note = '', rests_until = null,
    state = case when c.newer_than is null then 'canary' else 'awaiting_version' end
  where c.campaign_id = @campaign_id and c.tenant_id = @tenant_id and c.state = 'awaiting_approval'
    and not holdfast.is_same_person(c.tenant_id, coalesce(c.resumed_by, c.started_by), @actor)
  returning c.tenant_id, c.campaign_id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'campaign.approved', '{}', '{}', jsonb_build_object('campaign_id', campaign_id, 'actor', @actor::text)
  from approved
)
select campaign_id, 'awaiting_approval' as was
from approved;

-- name: abort_campaign(campaign_id, tenant_id, actor, note) -> row?
-- Abort a campaign: release nothing more, ever. Released dead letters continue and are counted.
with locked as materialized (
  select c.campaign_id, c.state
  from holdfast.campaign c
  where c.campaign_id = @campaign_id and c.tenant_id = @tenant_id
    and c.state in ('awaiting_approval', 'awaiting_version', 'canary', 'ramp', 'stopped')
  for update of c
),
aborted as (
  update holdfast.campaign c
  set state = 'aborted', ended_at = holdfast.instant(), changed_at = holdfast.instant(), changed_by = @actor, note = @note
  from locked
  where c.campaign_id = locked.campaign_id
  returning c.tenant_id, c.campaign_id, locked.state as was
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'campaign.aborted', '{}', '{}',
    jsonb_build_object('campaign_id', campaign_id, 'actor', @actor::text, 'reason', @note::text)
  from aborted
)
select campaign_id, was
from aborted;

-- name: resume_campaign(campaign_id, tenant_id, actor, reason, newer_than?) -> row?
-- Resume a campaign with another canary, over the dead letters that are left and that failed again. The counters of the
-- leg before do not count against it. Approval is needed again if it was needed before, and so is a newer version:
-- newer than every version that has failed by now (@newer_than).
with found as materialized (
  select c.campaign_id, count(d.dead_letter_id)::int as "left", coalesce(max(d.dead_letter_id), 0) as upto_id,
    array_agg(distinct d.lane_id) filter (where d.lane_id is not null) as lane_ids
  from holdfast.campaign c
  left join holdfast.redrivable_dead_letters d on d.tenant_id = c.tenant_id and d.fingerprint = c.fingerprint
  where c.campaign_id = @campaign_id
  group by c.campaign_id
),
resumed as (
  update holdfast.campaign c
  set state = case
      when c.needs_approval then 'awaiting_approval'
      when c.newer_than is not null then 'awaiting_version'
      else 'canary'
    end,
    leg = c.leg + 1, leg_released = 0, leg_succeeded = 0, leg_returned = 0, leg_failed = 0,
    upto_id = greatest(c.upto_id, found.upto_id), lane_ids = coalesce(found.lane_ids, c.lane_ids),
    total = c.released + found."left", changed_at = holdfast.instant(), changed_by = @actor, resumed_by = @actor, approved_by = null,
    newer_than = case when c.newer_than is not null then coalesce(@newer_than, c.newer_than) end, note = @reason, looked_to = 0, passed_by = false,
    rests_until = null
  from found
  where c.campaign_id = found.campaign_id and c.tenant_id = @tenant_id and c.state = 'stopped'
  returning c.tenant_id, c.campaign_id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'campaign.resumed', '{}', '{}',
    jsonb_build_object('campaign_id', campaign_id, 'actor', @actor::text, 'reason', @reason::text)
  from resumed
)
select campaign_id, 'stopped' as was
from resumed;
