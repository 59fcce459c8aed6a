-- name: dead_groups
-- Unresolved letters by fingerprint, with a sample of the newest. A task is counted once, however often it failed. Counted
-- are the newest letters to a bound ($3), and every row says if there may be more.
with newest as materialized (
  (
    select d.dead_letter_id, d.task_id, d.lane_id, d.fingerprint, d.state, d.opened_at
    from holdfast.dead_letter d
    where d.tenant_id = $1 and d.state = 'open'
    order by d.dead_letter_id desc
    limit $3
  )
  union all
  (
    select d.dead_letter_id, d.task_id, d.lane_id, d.fingerprint, d.state, d.opened_at
    from holdfast.dead_letter d
    where d.tenant_id = $1 and d.wants_sweep and d.state in ('retry_requested', 'retrying')
    order by d.dead_letter_id desc
    limit $3
  )
  union all
  (
    select d.dead_letter_id, d.task_id, d.lane_id, d.fingerprint, d.state, d.opened_at
    from holdfast.dead_letter d
    where d.tenant_id = $1 and d.state = 'retrying' and not d.wants_sweep
    order by d.dead_letter_id desc
    limit $3
  )
),
grouped as materialized (
  select d.fingerprint, count(distinct d.task_id) as count, count(*) as letters,
    count(*) filter (where d.state = 'open') as open,
    count(*) filter (where d.state = 'retry_requested') as retry_requested,
    count(*) filter (where d.state = 'retrying') as retrying,
    min(d.opened_at) as first_seen, max(d.opened_at) as last_seen, max(d.dead_letter_id) as newest,
    array_agg(distinct l.action order by l.action) as actions, array_agg(distinct q.name order by q.name) as queues
  from newest d
  join holdfast.lane l on l.lane_id = d.lane_id
  join holdfast.queue q on q.queue_id = l.queue_id
  group by d.fingerprint
  order by count(distinct d.task_id) desc, max(d.dead_letter_id) desc
  limit $2
)
select g.fingerprint, g.count, g.letters, g.open, g.retry_requested, g.retrying, g.first_seen, g.last_seen,
  coalesce(f.type, '') as type, coalesce(f.code, '') as code, coalesce(f.message, '') as message, d.cause, g.actions,
  g.queues, d.task_id, (select count(*) from newest) >= $3 as is_partial
from grouped g
join holdfast.dead_letter d on d.dead_letter_id = g.newest
left join holdfast.failure f on f.task_id = d.task_id and f.attempt = d.attempts
order by g.count desc, g.newest desc;

-- name: list_letters
-- A page of letters, newest first, with the failures they stand for; inputs and tracebacks only where asked for. Those of a
-- task, of a group that is not resolved or by id come from an index; of others so many are looked at and no more ($9), and
-- `floor` is the last of them where that left the page short.
with page as materialized (
  (
    select d.*
    from holdfast.dead_letter d
    where $9::int is null
      and d.tenant_id = $1 and ($2::text[] is null or d.state = any($2)) and ($3::text is null or d.fingerprint = $3)
      and ($4::bigint is null or d.task_id = $4) and d.dead_letter_id < $5
      and ($7::bigint is null or d.dead_letter_id = $7)
      and (not $10::boolean or d.state in ('open', 'retry_requested', 'retrying'))
    order by d.dead_letter_id desc
    limit $6
  )
  union all
  (
    select d.*
    from (
      select * from holdfast.dead_letter d where $9::int is not null and d.dead_letter_id < $5 order by d.dead_letter_id desc limit $9
    ) d
    where d.tenant_id = $1 and ($2::text[] is null or d.state = any($2)) and ($3::text is null or d.fingerprint = $3)
    order by d.dead_letter_id desc
    limit $6
  )
),
looked as materialized (
  select case when (select count(*) from page) < $6
    then (
      select d.dead_letter_id
      from holdfast.dead_letter d
      where $9::int is not null and d.dead_letter_id < $5
      order by d.dead_letter_id desc
      offset coalesce($9, 1) - 1
      limit 1
    ) end as floor
)
select d.dead_letter_id, d.task_id, coalesce(d.run_id, d.task_id) as run_id, d.state, d.source_type, d.source_id, l.action,
  q.name as queue, d.attempts, d.generation, d.fingerprint, d.cause, d.reason, coalesce(f.code, '') as code,
  coalesce(f.type, '') as type, coalesce(f.message, '') as message,
  -- What could be undone when it failed may have been undone since.
  case when 'compensate' = any(holdfast.recovery_options(d.task_id)) then d.recovery_options
    else array_remove(d.recovery_options, 'compensate') end as recovery_options, d.disposition,
  d.disposition_reason, d.actor, d.dispatches, d.dispatched_at, d.backoff_seconds, d.opened_at, d.changed_at,
  d.previous_id, d.campaign_id, coalesce(e.tags, b.tags, '{}') as tags, holdfast.instant() as at,
  case when $8::boolean then f.traceback end as traceback,
  case when $8::boolean then coalesce(d.input, e.input, b.input) end as input, looked.floor
from looked
left join page d on true
left join holdfast.lane l on l.lane_id = d.lane_id
left join holdfast.queue q on q.queue_id = l.queue_id
left join holdfast.failure f on f.task_id = d.task_id and f.attempt = d.attempts
left join holdfast.ended e on e.task_id = d.task_id
left join lateral (select b.tags, b.input from holdfast.body b where b.task_id = d.task_id limit 1) b on true
order by d.dead_letter_id desc;

-- name: unresolved_letters
-- The unresolved letters of one task or group, a page of them; on demand ($6) also those that were ignored.
select d.dead_letter_id, d.run_id
from holdfast.dead_letter d
where d.tenant_id = $1 and ($2::bigint is null or d.task_id = $2) and ($3::text is null or d.fingerprint = $3)
  and (d.state in ('open', 'retry_requested', 'retrying') or (d.state = 'ignored' and $6::boolean))
  and d.dead_letter_id > $4
order by d.dead_letter_id
limit $5;
