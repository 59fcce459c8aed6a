-- name: dead_groups(tenant_id, limit, dead_letters_max, groups_max, scan_rows_max) -> rows
-- Return unresolved dead letters by fingerprint, the largest group first, each with a sample of its newest dead letter.
-- At most @dead_letters_max dead letters are counted along an index, group by group. The groups after them are read from the index
-- too, one step each (at most @groups_max), together with the groups of the newest dead letters, and each is counted up to a
-- small bound, so that no group hides another. Of the @limit largest groups at most @scan_rows_max dead letters are read for states,
-- tasks and lanes, divided so that small groups are read whole. A task counts once, however often it failed.
with recursive counted as materialized (
  select d.fingerprint, count(*) as letters
  from (
    select d.fingerprint
    from holdfast.dead_letter d
    where d.tenant_id = @tenant_id and d.state in ('open', 'retry_requested', 'retrying')
    order by d.fingerprint
    limit @dead_letters_max
  ) d
  group by d.fingerprint
),
-- The group in which counting reached its bound.
cut as materialized (
  select max(counted.fingerprint) as fingerprint
  from counted
  having sum(counted.letters) >= @dead_letters_max
),
steps as (
  select cut.fingerprint, 0 as step
  from cut
  union all
  select (
    select d.fingerprint
    from holdfast.dead_letter d
    where d.tenant_id = @tenant_id and d.state in ('open', 'retry_requested', 'retrying') and d.fingerprint > steps.fingerprint
    order by d.fingerprint
    limit 1
  ), steps.step + 1
  from steps
  where steps.fingerprint is not null and steps.step < @groups_max
),
behind as materialized (
  select steps.fingerprint
  from steps
  where steps.fingerprint is not null and steps.step > 0
  union
  select d.fingerprint
  from (
    select d.fingerprint
    from holdfast.dead_letter d
    where d.tenant_id = @tenant_id and d.state = 'open' and (select max(step) from steps) >= @groups_max
    order by d.dead_letter_id desc
    limit @groups_max
  ) d
  where d.fingerprint > (select cut.fingerprint from cut)
),
sized as materialized (
  select counted.fingerprint, counted.letters, counted.fingerprint is not distinct from (select cut.fingerprint from cut) as is_more
  from counted
  union all
  select behind.fingerprint, c.letters, c.letters >= share.most
  from (select greatest(@scan_rows_max::bigint / greatest(count(*), 1), 1) as most from behind) share
  cross join behind
  cross join lateral (
    select count(*) as letters
    from (
      select
      from holdfast.dead_letter d
      where d.tenant_id = @tenant_id and d.state in ('open', 'retry_requested', 'retrying') and d.fingerprint = behind.fingerprint
      limit share.most
    ) d
  ) c
),
largest as materialized (
  select sized.fingerprint, sized.letters, sized.is_more
  from sized
  order by sized.letters desc, sized.fingerprint
  limit @limit
),
-- How many dead letters of a group are read: what is left for it after all smaller groups had theirs.
level as materialized (
  select coalesce(
    (array_agg(s.room order by s.place) filter (where s.letters > s.room))[1],
    max(s.letters)
  ) as most
  from (
    select s.letters, s.place, greatest((@scan_rows_max::bigint - (s.so_far - s.letters)) / (s.groups - s.place + 1), 1) as room
    from (
      select largest.letters, row_number() over w as place, sum(largest.letters) over w as so_far, count(*) over () as groups
      from largest
      window w as (order by largest.letters, largest.fingerprint)
    ) s
  ) s
),
grouped as materialized (
  select largest.fingerprint, largest.letters, largest.is_more or largest.letters > count(*) as is_partial,
    count(distinct d.task_id) as tasks,
    count(*) filter (where d.state = 'open') as open,
    count(*) filter (where d.state = 'retry_requested') as retry_requested,
    count(*) filter (where d.state = 'retrying') as retrying,
    max(d.opened_at) as last_seen, max(d.dead_letter_id) as newest, array_agg(distinct d.lane_id) as lane_ids
  from largest
  cross join lateral (
    select d.dead_letter_id, d.task_id, d.lane_id, d.state, d.opened_at
    from holdfast.dead_letter d
    where d.tenant_id = @tenant_id and d.state in ('open', 'retry_requested', 'retrying') and d.fingerprint = largest.fingerprint
    order by d.dead_letter_id desc
    limit (select most from level)
  ) d
  group by largest.fingerprint, largest.letters, largest.is_more
)
select g.fingerprint, g.tasks, g.letters, g.open, g.retry_requested, g.retrying, oldest.opened_at as first_seen,
  g.last_seen, coalesce(f.type, '') as type, coalesce(f.code, '') as code, coalesce(f.message, '') as message, d.cause,
  g.lane_ids, d.task_id, g.is_partial
from grouped g
join holdfast.dead_letter d on d.dead_letter_id = g.newest
cross join lateral (
  select o.opened_at
  from holdfast.dead_letter o
  where o.tenant_id = @tenant_id and o.state in ('open', 'retry_requested', 'retrying') and o.fingerprint = g.fingerprint
  order by o.dead_letter_id
  limit 1
) oldest
left join holdfast.failure f on f.task_id = d.task_id and f.attempt = d.attempts
order by g.tasks desc, g.letters desc, g.newest desc;

-- name: list_dead_letters(tenant_id, states?, fingerprint?, task_id?, dead_letter_id_max, limit, dead_letter_id?,
--   with_body, scan_rows_max?, is_unresolved) -> rows
-- nullable: dead_letter_id, run_id, disposition, disposition_reason, actor, dispatched_at, backoff_seconds,
--   previous_id, campaign_id, traceback, input, floor
-- null with dead_letter_id: task_id, state, source_type, source_id, action, queue, attempts, generation,
--   fingerprint, cause, reason, recovery_options, dispatches, dispatches_max, opened_at, changed_at
-- Return a page of dead letters, newest first, with their failures; inputs and tracebacks only if requested. Dead
-- letters of a task, of an unresolved group or by id come from an index; otherwise at most @scan_rows_max of this tenant are read
-- (see holdfast.newest_ids), and `floor` is the last of them if that left the page short.
with looks as materialized (
  select n.id, n.is_edge
  from holdfast.newest_ids('dead letters', @tenant_id, 0, @dead_letter_id_max, @scan_rows_max, null, @states) n
  where @scan_rows_max::int is not null
),
page as materialized (
  (
    select d.*
    from holdfast.dead_letter d
    where @scan_rows_max::int is null
      and d.tenant_id = @tenant_id and (@states::text[] is null or d.state = any(@states)) and (@fingerprint::text is null or d.fingerprint = @fingerprint)
      and (@task_id::bigint is null or d.task_id = @task_id) and d.dead_letter_id < @dead_letter_id_max
      and (@dead_letter_id::bigint is null or d.dead_letter_id = @dead_letter_id)
      and (not @is_unresolved::boolean or d.state in ('open', 'retry_requested', 'retrying'))
    order by d.dead_letter_id desc
    limit @limit
  )
  union all
  (
    select d.*
    from looks
    cross join lateral (select d.* from holdfast.dead_letter d where d.dead_letter_id = looks.id limit 1) d
    where not looks.is_edge and d.tenant_id = @tenant_id
      and (@states::text[] is null or d.state = any(@states)) and (@fingerprint::text is null or d.fingerprint = @fingerprint)
    limit @limit
  )
),
looked as materialized (
  select case when (select count(*) from page) < @limit
    then (select looks.id from looks where looks.is_edge) end as floor
)
select d.dead_letter_id, d.task_id, coalesce(d.run_id, d.task_id) as run_id, d.state, d.source_type, d.source_id, l.action,
  q.name as queue, d.attempts, d.generation, d.fingerprint, d.cause, d.reason, coalesce(f.code, '') as code,
  coalesce(f.type, '') as type, coalesce(f.message, '') as message,
  -- An effect that could be compensated when the task failed may have been compensated since.
  case when undo.is_possible then d.recovery_options
    else array_remove(d.recovery_options, 'compensate') end as recovery_options, d.disposition,
  d.disposition_reason, d.actor, d.dispatches, d.dispatches_max, d.dispatched_at, d.backoff_seconds, d.opened_at, d.changed_at,
  d.previous_id, d.campaign_id, coalesce(e.tags, b.tags, '{}') as tags, holdfast.instant() as at,
  case when @with_body::boolean then f.traceback end as traceback,
  case when @with_body::boolean then coalesce(d.input, e.input, b.input) end as input, looked.floor
from looked
left join page d on true
left join holdfast.lane l on l.lane_id = d.lane_id
left join holdfast.queue q on q.queue_id = l.queue_id
left join holdfast.failure f on f.task_id = d.task_id and f.attempt = d.attempts
left join holdfast.ended e on e.task_id = d.task_id
left join lateral (select b.tags, b.input from holdfast.body b where b.task_id = d.task_id limit 1) b on true
left join lateral (select true as is_possible from holdfast.compensable_effects(d.task_id) limit 1) undo on true
order by d.dead_letter_id desc;

-- name: unresolved_dead_letters(tenant_id, task_id?, fingerprint?, after, limit, with_ignored) -> rows
-- nullable: run_id
-- Return a page of the unresolved dead letters of one task or group; on demand (@with_ignored) also ignored ones.
select d.dead_letter_id, d.run_id
from holdfast.dead_letter d
where d.tenant_id = @tenant_id and (@task_id::bigint is null or d.task_id = @task_id) and (@fingerprint::text is null or d.fingerprint = @fingerprint)
  and (d.state in ('open', 'retry_requested', 'retrying') or (d.state = 'ignored' and @with_ignored::boolean))
  and d.dead_letter_id > @after
order by d.dead_letter_id
limit @limit;
