-- name: lock_dead_letters_of_runs(run_ids, tenant_id, task_ids) -> rows
-- nullable: run_id, node_no
-- Lock every unresolved dead letter of some runs and of some tasks (@task_ids), in the global order and before any of the
-- runs: a re-drive of a run updates all dead letters of the nodes that it resets. Each is found by its own index, not
-- by that of the tenant.
with asked as materialized (
  select a.dead_letter_id
  from holdfast.dead_letter a
  where a.run_id = any(@run_ids::bigint[]) and a.state <> 'resolved'
  union
  select a.dead_letter_id
  from holdfast.dead_letter a
  where a.task_id = any(@task_ids::bigint[])
)
select d.dead_letter_id, d.task_id, d.run_id, d.node_no, d.state, d.dispatches, d.fingerprint
from holdfast.dead_letter d
where d.dead_letter_id = any(array(select dead_letter_id from asked)) and d.tenant_id = @tenant_id and d.state <> 'resolved'
order by d.dead_letter_id
for update of d;

-- name: lock_dead_letters_of_task(task_id, tenant_id) -> rows
-- nullable: node_no
-- Lock the unresolved dead letters of one task, in the global order: the newest is the last. A transaction that waited
-- sees what the previous one did.
select d.dead_letter_id, d.task_id, d.node_no, d.state, d.dispatches
from holdfast.dead_letter d
where d.task_id = @task_id and d.tenant_id = @tenant_id and d.state <> 'resolved'
order by d.dead_letter_id
for update of d;

-- name: dead_task(task_id, tenant_id) -> row?
-- nullable: run_id, node_no
-- Return a failed task: its budget, its run and node, and whether the run was canceled. A node that failed without a
-- task has no budget.
select e.task_id, e.run_id, e.node_no, e.attempt, e.retries, e.max_retries, e.losses, e.max_losses, e.generation, e.lane_id,
  e.state::text as state, coalesce(f.state = 'l', false) as is_loss, r.canceled_at is not null as is_canceled
from holdfast.ended e
left join holdfast.failure f on f.task_id = e.task_id and f.attempt = e.attempt
left join holdfast.run r on r.run_id = e.run_id
where e.task_id = @task_id and e.tenant_id = @tenant_id
union all
select @task_id, n.run_id, n.node_no, n.attempt, 0, 0, 0, 0, n.generation, 0, n.state::text, false, r.canceled_at is not null
from holdfast.locate_task(@task_id) w
join holdfast.node n on n.run_id = w.run_id and n.node_no = w.node_no
join holdfast.run r on r.run_id = n.run_id
where w.item_no is null and n.state = 'f' and n.items is null and n.tenant_id = @tenant_id;

-- name: dead_letters_of_group(tenant_id, fingerprint, after, limit) -> rows
-- Return a page of the dead letters of a group whose task can be re-driven. Uses an index range, as in
-- `next_campaign_dead_letters`.
select d.dead_letter_id, d.state
from holdfast.redrivable_dead_letters d
where (d.tenant_id, d.fingerprint, d.dead_letter_id) > (@tenant_id, @fingerprint, @after)
  and (d.tenant_id, d.fingerprint, d.dead_letter_id) <= (@tenant_id, @fingerprint, 9223372036854775807)
order by d.tenant_id, d.fingerprint, d.dead_letter_id
limit @limit;

-- name: ignore_dead_letters(dead_letter_ids, actor, reason, disposition, tenant_id) -> rows
-- nullable: run_id
-- Mark dead letters as ignored. Running tasks continue; nothing is retried automatically any more. Dead letters that
-- were ignored before may still be abandoned (@disposition).
with locked as materialized (
  select d.dead_letter_id, d.state, d.disposition
  from holdfast.dead_letter d
  where d.dead_letter_id = any(@dead_letter_ids::bigint[]) and d.tenant_id = @tenant_id
    and (
      d.state in ('open', 'retry_requested', 'retrying')
      or (@disposition = 'abandoned' and d.disposition <> 'abandoned' and d.state = 'ignored')
    )
  order by d.dead_letter_id
  for update of d
),
done as (
  update holdfast.dead_letter d
  set state = 'ignored', disposition = @disposition, disposition_reason = @reason, actor = @actor, wants_sweep = false,
    changed_at = holdfast.instant()
  from locked
  where d.dead_letter_id = locked.dead_letter_id
  returning d.dead_letter_id, d.tenant_id, d.task_id, d.attempts, d.run_id, locked.state as was,
    locked.disposition as was_disposition
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'dead_letter.ignored', array_agg(task_id), array_agg(attempts),
    jsonb_build_object('actor', @actor::text, 'reason', @reason::text, 'disposition', @disposition::text)
  from done
  group by tenant_id
)
select dead_letter_id, task_id, run_id, was, was_disposition
from done
order by dead_letter_id;

-- name: resolve_dead_letters(dead_letter_ids, actor, reason, tenant_id) -> rows
-- Mark dead letters as resolved by an operator, whatever the state of their tasks; a requested retry is dropped.
with locked as materialized (
  select d.dead_letter_id, d.state, d.disposition
  from holdfast.dead_letter d
  where d.dead_letter_id = any(@dead_letter_ids::bigint[]) and d.tenant_id = @tenant_id
    and d.state in ('open', 'retry_requested', 'retrying')
  order by d.dead_letter_id
  for update of d
),
done as (
  update holdfast.dead_letter d
  set state = 'resolved', disposition = 'resolved', disposition_reason = @reason, actor = @actor, wants_sweep = false,
    changed_at = holdfast.instant()
  from locked
  where d.dead_letter_id = locked.dead_letter_id
  returning d.dead_letter_id, d.tenant_id, d.task_id, d.attempts, locked.state as was, locked.disposition as was_disposition
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'dead_letter.resolved', array_agg(task_id), array_agg(attempts),
    jsonb_build_object('actor', @actor::text, 'reason', @reason::text)
  from done
  group by tenant_id
)
select dead_letter_id, task_id, was, was_disposition
from done
order by dead_letter_id;

-- name: dead_tasks_of_group(tenant_id, fingerprint, after, limit) -> rows
-- nullable: run_id
-- Return a page of the tasks of a group that failed and have not run again, by the newest dead letter of each.
select d.dead_letter_id, d.task_id, d.run_id
from holdfast.dead_letter d
where holdfast.is_failed_at_rest(d.task_id, d.run_id, d.node_no) and d.tenant_id = @tenant_id and d.fingerprint = @fingerprint and d.dead_letter_id > @after
  and (d.state in ('open', 'retry_requested', 'retrying') or d.state = 'ignored')
  and not exists (select from holdfast.dead_letter n where n.task_id = d.task_id and n.dead_letter_id > d.dead_letter_id)
order by d.dead_letter_id
limit @limit;

-- name: lock_families(run_ids, tenant_id) -> nothing
-- Lock runs that are to be deleted and their parents, in the global order. Whether a parent waits for one is read after
-- this.
select r.run_id
from holdfast.run r
where r.tenant_id = @tenant_id and (
  r.run_id = any(@run_ids::bigint[])
  or r.run_id in (select c.parent_run_id from holdfast.run c where c.run_id = any(@run_ids::bigint[]))
)
order by r.run_id
for no key update of r;

-- name: delete_dead(task_ids, tenant_id, run_ids) -> rows
-- Delete failed tasks (@task_ids) and whole ended runs (@run_ids), with everything stored about them except events and the audit
-- log. A re-drive deletes the same `ended` rows, or changes the run's row, so only one of two concurrent transactions
-- finds them. A child of an open run is kept. Completed tasks among them were counted, and are subtracted. Requires the
-- locks of the runs and their parents.
with tasks as materialized (
  select e.task_id
  from holdfast.ended e
  where e.task_id = any(@task_ids::bigint[]) and e.tenant_id = @tenant_id and e.state = 'f' and e.run_id is null
  order by e.task_id
  for update of e
),
runs as materialized (
  select r.run_id, r.nodes, case r.state when 'f' then 'failed' else 'canceled' end as state
  from holdfast.run r
  where r.run_id = any(@run_ids::bigint[]) and r.tenant_id = @tenant_id and r.state in ('f', 'x')
    and not exists (select from holdfast.run p where p.run_id = r.parent_run_id and p.state = 'o')
  order by r.run_id
  for update of r
),
ids as materialized (
  select task_id
  from tasks
  union
  select r.run_id + n.nth
  from runs r
  cross join lateral generate_series(0, r.nodes) as n (nth)
  union
  select n.items_first + i.nth
  from runs r
  join holdfast.node n on n.run_id = r.run_id and n.items > 0
  cross join lateral generate_series(0, n.items - 1) as i (nth)
  union
  select p.items_first + i.nth
  from runs r
  join holdfast.past_items p on p.run_id = r.run_id
  cross join lateral generate_series(0, p.items - 1) as i (nth)
),
letters as (
  delete from holdfast.dead_letter d
  where d.task_id = any(array(select task_id from ids))
  returning d.task_id, d.run_id
),
ends as (
  delete from holdfast.ended e
  where e.task_id = any(array(select task_id from ids))
),
keys as (
  delete from holdfast.idempotency i
  where i.task_id = any(array(select task_id from ids))
),
notes as (
  delete from holdfast.note n
  where n.task_id = any(array(select task_id from ids))
),
dispatches as (
  delete from holdfast.dispatched d
  where d.task_id = any(array(select task_id from ids))
),
effects as (
  delete from holdfast.effect e
  where e.task_id = any(array(select task_id from ids))
),
steps as (
  delete from holdfast.step s
  where s.task_id = any(array(select task_id from ids))
),
failures as (
  delete from holdfast.failure f
  where f.task_id = any(array(select task_id from ids))
),
attempts as (
  delete from holdfast.attempt a
  where a.task_id = any(array(select task_id from ids))
),
bodies as (
  delete from holdfast.body b
  where b.task_id = any(array(select task_id from ids))
),
slots as (
  delete from holdfast.slot s
  where s.task_id = any(array(select task_id from tasks)) or s.run_id = any(array(select run_id from runs))
),
uncounted as (
  update holdfast.completed c
  set tasks = c.tasks - deleted.tasks
  from (
    select d.bucket, d.lane_id, sum(d.tasks) as tasks
    from (
      select r.run_id + 1 as first_id, r.run_id + r.nodes as last_id
      from runs r
      union all
      select s.items_first, s.items_first + s.items - 1
      from runs r
      join holdfast.item_span s on s.run_id = r.run_id
    ) span
    cross join lateral holdfast.completed_between(span.first_id, span.last_id) d
    group by d.bucket, d.lane_id
  ) deleted
  where c.lane_id = deleted.lane_id and c.bucket = deleted.bucket
),
nodes as (
  delete from holdfast.node n
  where n.run_id = any(array(select run_id from runs))
),
deleted as (
  delete from holdfast.run r
  where r.run_id = any(array(select run_id from runs))
)
select 'task' as kind, t.task_id as id, 'failed' as state,
  (select count(*)::int from letters l where l.task_id = t.task_id) as letters
from tasks t
union all
select 'run', r.run_id, r.state, (select count(*)::int from letters l where l.run_id = r.run_id)
from runs r
order by 1 desc, 2;
