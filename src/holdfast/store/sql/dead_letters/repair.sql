-- name: requeue_stale_dead_letters(limit) -> rows
-- Return dead letters to the sweep whose task stopped without updating them, such as an item that was replaced by items
-- that completed. Bounded.
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
  limit @limit
  for update of d skip locked
)
update holdfast.dead_letter d
set wants_sweep = true
where d.dead_letter_id = any(array(select dead_letter_id from forgotten))
returning d.dead_letter_id;

-- name: park_abandoned_dead_letters(limit, actor) -> rows
-- Close requested dead letters for which nothing more is tried: their task or run was canceled since (parked), or their
-- run completed without them (resolved). Dead letters of a campaign are left to the campaign. Bounded.
with locked as materialized (
  select d.dead_letter_id, coalesce(r.state = 'c', false) as is_over
  from holdfast.dead_letter d
  left join holdfast.ended e on e.task_id = d.task_id
  left join holdfast.run r on r.run_id = d.run_id
  left join holdfast.node n on n.run_id = d.run_id and n.node_no = d.node_no
  where (d.wants_sweep or (d.state = 'retrying' and not d.wants_sweep)) and d.campaign_id is null
    and (e.state = 'x' or r.state = 'x' or (r.state = 'c' and n.state in ('k', 'u')))
  order by d.dead_letter_id
  limit @limit
  for update of d skip locked
),
done as (
  update holdfast.dead_letter d
  set state = case when locked.is_over then 'resolved' else 'ignored' end,
    disposition = case when locked.is_over then 'superseded' else 'retry_failed' end,
    disposition_reason = case when locked.is_over then 'its run completed without it' else 'its task or run was canceled' end,
    actor = @actor, wants_sweep = false, changed_at = holdfast.instant()
  from locked
  where d.dead_letter_id = locked.dead_letter_id
  returning d.tenant_id, d.task_id, d.attempts, d.state, d.dead_letter_id, d.disposition, d.disposition_reason
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'dead_letter.' || state, array_agg(task_id), array_agg(attempts),
    jsonb_build_object('actor', @actor::text, 'reason', disposition_reason, 'disposition', disposition)
  from done
  group by tenant_id, state, disposition, disposition_reason
)
select dead_letter_id
from done;

-- name: close_replaced(run_ids?, limit, actor) -> rows
-- Resolve dead letters of replaced runs (@run_ids, or any): no node waits for them. Locked dead letters are left for the next
-- pass, so that a transaction that has locked a run never waits here. Bounded.
with locked as materialized (
  select d.dead_letter_id
  from holdfast.run r
  join holdfast.dead_letter d on d.run_id = r.run_id
    and d.state in ('open', 'retry_requested', 'retrying', 'ignored')
  where r.is_replaced and (@run_ids::bigint[] is null or r.run_id = any(@run_ids::bigint[]))
  order by d.dead_letter_id
  limit @limit
  for update of d skip locked
),
done as (
  update holdfast.dead_letter d
  set state = 'resolved', disposition = 'superseded', actor = @actor, wants_sweep = false,
    disposition_reason = 'its run was replaced by another', changed_at = holdfast.instant()
  where d.dead_letter_id = any(array(select dead_letter_id from locked))
  returning d.dead_letter_id, d.tenant_id, d.task_id, d.attempts
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select tenant_id, 'dead_letter.resolved', array_agg(task_id), array_agg(attempts)
  from done
  group by tenant_id
)
select dead_letter_id
from done;

-- name: park_node(tenant_id, task_id, run_id, node_no, lane_id, attempts, generation, fingerprint, reason, actor) ->
--   nothing
-- Open the dead letter of a node that failed without a task, and close its earlier ones, which it replaces. Locked dead
-- letters are left to the sweep, and those of a campaign to the campaign: a transaction that has locked a run waits for
-- no dead letter. Requires the lock of the run.
with locked as materialized (
  select d.dead_letter_id
  from holdfast.dead_letter d
  where d.task_id = @task_id and d.state in ('open', 'retry_requested', 'retrying') and d.campaign_id is null
  order by d.dead_letter_id
  for update of d skip locked
),
closed as (
  update holdfast.dead_letter d
  set state = 'resolved', disposition = 'superseded', actor = @actor, wants_sweep = false,
    disposition_reason = 'it failed again, and another letter stands for it', changed_at = holdfast.instant()
  where d.dead_letter_id = any(array(select dead_letter_id from locked))
  returning d.tenant_id, d.task_id, d.attempts
),
letter as (
  insert into holdfast.dead_letter (
    tenant_id, task_id, run_id, node_no, lane_id, attempts, generation, source_id, fingerprint, cause, reason, previous_id
  )
  values (
    @tenant_id, @task_id, @run_id, @node_no, @lane_id, @attempts, @generation, @task_id::bigint::text, @fingerprint, @reason, @reason,
    (select max(d.dead_letter_id) from holdfast.dead_letter d where d.task_id = @task_id)
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

-- name: resolve_completed_nodes(task_ids?, limit, actor) -> rows
-- Resolve requested dead letters of nodes without a task (@task_ids, or any) that have completed since. Locked dead letters
-- are left for the next pass, so that a transaction that has locked a run never waits here. Bounded.
with locked as materialized (
  select d.dead_letter_id
  from holdfast.dead_letter d
  join holdfast.node n on n.run_id = d.run_id and n.node_no = d.node_no
  where (d.wants_sweep or (d.state = 'retrying' and not d.wants_sweep)) and (@task_ids::bigint[] is null or d.task_id = any(@task_ids))
    and d.task_id = d.run_id + 1 + d.node_no and n.state = 'c' and n.generation > d.generation
  order by d.dead_letter_id
  limit @limit
  for update of d skip locked
),
done as (
  update holdfast.dead_letter d
  set state = 'resolved', disposition = 'retry_succeeded', actor = @actor, wants_sweep = false,
    disposition_reason = 'a later attempt completed', changed_at = holdfast.instant()
  where d.dead_letter_id = any(array(select dead_letter_id from locked))
  returning d.dead_letter_id, d.tenant_id, d.task_id, d.attempts
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts)
  select tenant_id, 'dead_letter.resolved', array_agg(task_id), array_agg(attempts)
  from done
  group by tenant_id
)
select dead_letter_id
from done;
