-- name: rouse_forgotten
-- Letters whose task came to rest without telling have something to be judged again: an older worker settled it, or it is
-- an item in whose place others completed. Bounded.
with forgotten as materialized (
  select d.dead_letter_id
  from holdfast.dead_letter d
  left join holdfast.ended e on e.task_id = d.task_id
  left join holdfast.run r on r.run_id = d.run_id
  where d.state = 'retrying' and not d.wants_sweep
    and (
      e.state = 'f'
      or r.state = 'f'
      or exists (
        select from holdfast.attempt a
        where a.task_id = d.task_id and a.state = 'c' and a.generation > d.generation
      )
      or exists (
        select from holdfast.past_items p
        join holdfast.node n on n.run_id = p.run_id and n.node_no = p.node_no
        where p.run_id = d.run_id and d.task_id between p.items_first and p.items_first + p.items - 1 and n.state = 'c'
      )
    )
  order by d.dead_letter_id
  limit $1
  for update of d skip locked
)
update holdfast.dead_letter d
set wants_sweep = true
where d.dead_letter_id = any(array(select dead_letter_id from forgotten))
returning d.dead_letter_id;

-- name: park_left
-- Letters that were asked for and that nothing more is tried for: their task or run was canceled since (parked), or their
-- run completed without them (resolved). Those of a campaign are the campaign's. Bounded.
with held as materialized (
  select d.dead_letter_id, coalesce(r.state = 'c', false) as is_over
  from holdfast.dead_letter d
  left join holdfast.ended e on e.task_id = d.task_id
  left join holdfast.run r on r.run_id = d.run_id
  left join holdfast.node n on n.run_id = d.run_id and n.node_no = d.node_no
  where (d.wants_sweep or (d.state = 'retrying' and not d.wants_sweep)) and d.campaign_id is null
    and (e.state = 'x' or r.state = 'x' or (r.state = 'c' and n.state in ('k', 'u')))
  order by d.dead_letter_id
  limit $1
  for update of d skip locked
),
done as (
  update holdfast.dead_letter d
  set state = case when held.is_over then 'resolved' else 'ignored' end,
    disposition = case when held.is_over then 'superseded' else 'retry_failed' end,
    disposition_reason = case when held.is_over then 'its run completed without it' else 'its task or run was canceled' end,
    actor = $2, wants_sweep = false, changed_at = holdfast.instant()
  from held
  where d.dead_letter_id = held.dead_letter_id
  returning d.tenant_id, d.task_id, d.attempts, d.state, d.dead_letter_id, d.disposition, d.disposition_reason
),
told as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'dead_letter.' || state, array_agg(task_id), array_agg(attempts),
    jsonb_build_object('actor', $2::text, 'reason', disposition_reason, 'disposition', disposition)
  from done
  group by tenant_id, state, disposition, disposition_reason
)
select dead_letter_id
from done;

-- name: unlettered
-- Failed tasks without a letter, with the failure that ended them.
select e.task_id, f.state::text as state, f.code, f.type, f.message, f.traceback, f.reason
from holdfast.ended e
left join holdfast.failure f on f.task_id = e.task_id and f.attempt = e.attempt
where e.state = 'f' and e.has_letter is null and ($2::bigint is null or e.task_id = $2)
order by e.task_id
limit $1;

-- name: adopt_tasks
-- Open the letters that failed tasks lack. `has_letter` is the guard: each task is adopted once.
with held as (
  update holdfast.ended e
  set has_letter = true
  where e.task_id = any($1::bigint[]) and e.state = 'f' and e.has_letter is null
  returning e.*
),
letters as (
  insert into holdfast.dead_letter (
    tenant_id, task_id, run_id, node_no, lane_id, attempts, generation, opened_at, source_id, fingerprint, cause, reason,
    previous_id, recovery_options
  )
  select held.tenant_id, held.task_id, held.run_id, held.node_no, held.lane_id, held.attempt, held.generation,
    held.ended_at, held.task_id::text, g.fingerprint, g.cause, held.reason,
    (select max(d.dead_letter_id) from holdfast.dead_letter d where d.task_id = held.task_id),
    holdfast.recovery_options(held.task_id)
  from held
  join unnest($1::bigint[], $2::text[], $3::text[]) as g (task_id, fingerprint, cause) on g.task_id = held.task_id
  returning tenant_id, task_id, attempts
),
told as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select tenant_id, 'dead_letter.opened', array_agg(task_id), array_agg(attempts)
  from letters
  group by tenant_id
)
select task_id
from letters;

-- name: close_replaced
-- Letters of runs in whose place others were started ($1, or any): nothing waits for what they stand for. Letters that
-- somebody holds are left for the next pass, so that nobody who holds a run waits here. Bounded.
with held as materialized (
  select d.dead_letter_id
  from holdfast.run r
  join holdfast.dead_letter d on d.run_id = r.run_id
    and d.state in ('open', 'retry_requested', 'retrying', 'ignored')
  where r.is_replaced and ($1::bigint[] is null or r.run_id = any($1::bigint[]))
  order by d.dead_letter_id
  limit $2
  for update of d skip locked
),
done as (
  update holdfast.dead_letter d
  set state = 'resolved', disposition = 'superseded', actor = $3, wants_sweep = false,
    disposition_reason = 'its run was replaced by another', changed_at = holdfast.instant()
  where d.dead_letter_id = any(array(select dead_letter_id from held))
  returning d.dead_letter_id, d.tenant_id, d.task_id, d.attempts
),
told as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select tenant_id, 'dead_letter.resolved', array_agg(task_id), array_agg(attempts)
  from done
  group by tenant_id
)
select dead_letter_id
from done;

-- name: park_node
-- Open the letter of a node that failed without a task, and close those it had: it stands for them. Letters that somebody
-- holds are left to the sweep, and those of a campaign to the campaign: who holds a run waits for no letter. Under its lock.
with held as materialized (
  select d.dead_letter_id
  from holdfast.dead_letter d
  where d.task_id = $2 and d.state in ('open', 'retry_requested', 'retrying') and d.campaign_id is null
  order by d.dead_letter_id
  for update of d skip locked
),
closed as (
  update holdfast.dead_letter d
  set state = 'resolved', disposition = 'superseded', actor = $10, wants_sweep = false,
    disposition_reason = 'it failed again, and another letter stands for it', changed_at = holdfast.instant()
  where d.dead_letter_id = any(array(select dead_letter_id from held))
  returning d.tenant_id, d.task_id, d.attempts
),
letter as (
  insert into holdfast.dead_letter (
    tenant_id, task_id, run_id, node_no, lane_id, attempts, generation, source_id, fingerprint, cause, reason, previous_id
  )
  values (
    $1, $2, $3, $4, $5, $6, $7, $2::bigint::text, $8, $9, $9,
    (select max(d.dead_letter_id) from holdfast.dead_letter d where d.task_id = $2)
  )
  returning tenant_id, task_id, attempts
)
insert into holdfast.event (tenant_id, kind, task_ids, attempts)
select tenant_id, 'dead_letter.resolved', array_agg(task_id), array_agg(attempts)
from closed
group by tenant_id
union all
select tenant_id, 'dead_letter.opened', array[task_id], array[attempts]
from letter
returning kind;

-- name: resolve_mended
-- Letters that were asked for of nodes without a task ($1, or any) that completed since, whoever asked. Letters that
-- somebody holds are left for the next pass, so that nobody who holds a run waits here. Bounded.
with held as materialized (
  select d.dead_letter_id
  from holdfast.dead_letter d
  join holdfast.node n on n.run_id = d.run_id and n.node_no = d.node_no
  where (d.wants_sweep or (d.state = 'retrying' and not d.wants_sweep)) and ($1::bigint[] is null or d.task_id = any($1))
    and d.task_id = d.run_id + 1 + d.node_no and n.state = 'c' and n.generation > d.generation
  order by d.dead_letter_id
  limit $2
  for update of d skip locked
),
done as (
  update holdfast.dead_letter d
  set state = 'resolved', disposition = 'retry_succeeded', actor = $3, wants_sweep = false,
    disposition_reason = 'a later attempt completed', changed_at = holdfast.instant()
  where d.dead_letter_id = any(array(select dead_letter_id from held))
  returning d.dead_letter_id, d.tenant_id, d.task_id, d.attempts
),
told as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select tenant_id, 'dead_letter.resolved', array_agg(task_id), array_agg(attempts)
  from done
  group by tenant_id
)
select dead_letter_id
from done;
