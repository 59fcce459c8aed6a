-- name: hold_run_letters
-- Every unresolved letter of some runs under its lock, in the one order and before any of the runs: a re-drive of a run
-- is told to all that stand for what it resets.
select d.dead_letter_id, d.task_id, d.run_id, d.node_no, d.state, d.dispatches, d.fingerprint
from holdfast.dead_letter d
where d.run_id = any($1::bigint[]) and d.tenant_id = $2 and d.state <> 'resolved'
order by d.dead_letter_id
for update of d;

-- name: lock_task_letters
-- The unresolved letters of one task under their locks, newest first. Whoever waited sees what the one before did.
select d.dead_letter_id, d.task_id, d.run_id, d.state, d.dispatches, d.fingerprint, d.campaign_id
from holdfast.dead_letter d
where d.task_id = $1 and d.tenant_id = $2 and d.state <> 'resolved'
order by d.dead_letter_id desc
for update of d;

-- name: dead_task
-- A failed task as it rests: whether its budget is spent, where it belongs, and whether that can go on.
select e.task_id, e.run_id, e.attempt, e.retries, e.max_retries, e.losses, e.max_losses, e.generation, e.lane_id,
  e.state::text as state, coalesce(f.state = 'l', false) as is_loss, r.canceled_at is not null as is_canceled
from holdfast.ended e
left join holdfast.failure f on f.task_id = e.task_id and f.attempt = e.attempt
left join holdfast.run r on r.run_id = e.run_id
where e.task_id = $1 and e.tenant_id = $2;

-- name: group_letters
-- A page of the letters of a group that stand for their task: the newest one of each, if it is open, or was left and
-- its task can still go.
select d.dead_letter_id, d.state
from holdfast.dead_letter d
where d.tenant_id = $1 and d.fingerprint = $2 and d.dead_letter_id > $3
  and (d.state = 'open' or (d.state = 'ignored' and holdfast.can_go_again(d.task_id)))
  and not exists (select from holdfast.dead_letter n where n.task_id = d.task_id and n.dead_letter_id > d.dead_letter_id)
order by d.dead_letter_id
limit $4;

-- name: ignore_letters
-- Known, and left. What is under way goes on; nothing is retried by itself any more. Those that were ignored before may
-- be abandoned ($4) all the same.
with held as materialized (
  select d.dead_letter_id, d.state, d.disposition
  from holdfast.dead_letter d
  where d.dead_letter_id = any($1::bigint[]) and d.tenant_id = $5
    and (
      d.state in ('open', 'retry_requested', 'retrying')
      or ($4 = 'abandoned' and d.disposition <> 'abandoned' and d.state = 'ignored')
    )
  order by d.dead_letter_id
  for update of d
),
done as (
  update holdfast.dead_letter d
  set state = 'ignored', disposition = $4, disposition_reason = $3, actor = $2, wants_sweep = false,
    changed_at = holdfast.instant()
  from held
  where d.dead_letter_id = held.dead_letter_id
  returning d.dead_letter_id, d.tenant_id, d.task_id, d.attempts, d.run_id, held.state as was,
    held.disposition as was_disposition
),
told as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'dead_letter.ignored', array_agg(task_id), array_agg(attempts),
    jsonb_build_object('actor', $2::text, 'reason', $3::text, 'disposition', $4::text)
  from done
  group by tenant_id
)
select dead_letter_id, task_id, run_id, was, was_disposition
from done
order by dead_letter_id;

-- name: close_letters
-- An operator says that letters are dealt with, whatever became of their tasks: what was asked for is asked no more.
with held as materialized (
  select d.dead_letter_id, d.state, d.disposition
  from holdfast.dead_letter d
  where d.dead_letter_id = any($1::bigint[]) and d.tenant_id = $4
    and d.state in ('open', 'retry_requested', 'retrying')
  order by d.dead_letter_id
  for update of d
),
done as (
  update holdfast.dead_letter d
  set state = 'resolved', disposition = 'resolved', disposition_reason = $3, actor = $2, wants_sweep = false,
    changed_at = holdfast.instant()
  from held
  where d.dead_letter_id = held.dead_letter_id
  returning d.dead_letter_id, d.tenant_id, d.task_id, d.attempts, held.state as was, held.disposition as was_disposition
),
told as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'dead_letter.resolved', array_agg(task_id), array_agg(attempts),
    jsonb_build_object('actor', $2::text, 'reason', $3::text)
  from done
  group by tenant_id
)
select dead_letter_id, task_id, was, was_disposition
from done
order by dead_letter_id;
