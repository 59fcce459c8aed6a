-- name: add_builds(generation_id, task_ids) -> rows
-- Register tasks and runs as builders of a generation, while it accepts rows. Idempotent, for repeated requests under a
-- key.
insert into holdfast.dataset_build (generation_id, task_id)
select g.generation_id, b.task_id
from (
  select g.generation_id
  from holdfast.dataset_generation g
  where g.generation_id = @generation_id and g.state in ('b', 'c')
  for share of g
) g
cross join unnest(@task_ids::bigint[]) as b (task_id)
on conflict (generation_id, task_id) do update
set task_id = excluded.task_id
returning task_id;

-- name: builds_left(generation_id, task_id?, run_id?) -> row
-- Count the unfinished and the failed work on a generation. The requesting task does not count, nor its run, the
-- ancestors of that run, or work that was replaced.
with recursive asking as (
  select @run_id::bigint as run_id
  union all
  select r.parent_run_id
  from asking a
  join holdfast.run r on r.run_id = a.run_id
  where r.parent_run_id is not null
)
select count(*) filter (where t.task_id is not null or r.state = 'o') as unfinished,
  count(*) filter (where e.state = 'f' or r.state = 'f') as failed
from holdfast.dataset_build b
left join holdfast.live t on t.task_id = b.task_id
left join holdfast.ended e on e.task_id = b.task_id
left join holdfast.run r on r.run_id = b.task_id
where b.generation_id = @generation_id and b.task_id <> coalesce(@task_id::bigint, -1)
  and not exists (select from asking a where a.run_id = b.task_id)
  and not holdfast.is_replaced(b.task_id, coalesce(r.run_id, e.run_id));

-- name: builds_to_cancel(generation_id, limit) -> rows
-- Return tasks and runs of a generation that have not ended and were not asked to stop yet.
select b.task_id, r.run_id is not null as is_run
from holdfast.dataset_build b
left join holdfast.live t on t.task_id = b.task_id and t.cancel_at is null
left join holdfast.run r on r.run_id = b.task_id and r.state = 'o' and r.canceled_at is null
where b.generation_id = @generation_id and (t.task_id is not null or r.run_id is not null)
order by b.task_id
limit @limit;

-- name: supersede(dataset_id) -> nothing
-- Mark the current generation of a dataset as superseded. It stays as it is: rows owed to it are no longer deleted.
-- Requires the lock of the dataset.
with old as (
  update holdfast.dataset_generation g
  set state = 'o'
  where g.dataset_id = @dataset_id and g.state = 'c'
  returning g.generation_id, g.version
),
forgiven as (
  delete from holdfast.dataset_owed o
  using old
  where o.generation_id = old.generation_id
)
select version
from old;

-- name: cut_over(dataset_id, version, actor, reason) -> rows
-- Make a generation current, under the lock of its dataset; `refresh_dataset_view` follows in the same transaction.
with promoted as (
  update holdfast.dataset_generation g
  set state = 'c', cut_over_at = holdfast.instant(), actor = @actor, reason = @reason
  where g.dataset_id = @dataset_id and g.version = @version and g.state in ('b', 'o')
  returning g.dataset_id, g.tenant_id, g.version, g.rows
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'dataset.cut_over', '{}', '{}',
    jsonb_build_object('dataset_id', dataset_id, 'version', version, 'rows', rows, 'actor', @actor::text, 'reason', @reason::text)
  from promoted
)
update holdfast.dataset d
set current_version = promoted.version
from promoted
where d.dataset_id = promoted.dataset_id
returning d.dataset_id;

-- name: refresh_dataset_view(dataset_id, is_first) -> nothing
-- Make the view of a dataset show its current generation.
select holdfast.refresh_dataset_view(@dataset_id, @is_first);

-- name: roll_back(dataset_id, version, states, is_kept, actor, reason) -> rows
-- Take a generation out of use: it accepts no more rows, its unfinished work is to be canceled and, unless it is kept,
-- its tables are to be dropped. Requires the lock of its dataset.
with rolled_back as (
  update holdfast.dataset_generation g
  set state = 'r', is_kept = @is_kept, ended_at = holdfast.instant(), actor = @actor, reason = @reason
  where g.dataset_id = @dataset_id and g.version = @version and g.state = any(@states::"char"[])
  returning g.generation_id, g.dataset_id, g.tenant_id, g.version
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'dataset.rolled_back', '{}', '{}',
    jsonb_build_object('dataset_id', dataset_id, 'version', version, 'actor', @actor::text, 'reason', @reason::text)
  from rolled_back
)
select generation_id
from rolled_back;

-- name: previous_generation(dataset_id) -> value?
-- Return the version that the view of a dataset showed before.
select g.version
from holdfast.dataset_generation g
where g.dataset_id = @dataset_id and g.state = 'o' and g.cut_over_at is not null
order by g.cut_over_at desc
limit 1;

-- name: generations_leaving(limit, generation_id) -> rows
-- Return the next page of generations that were rolled back and whose tables are to be dropped, or whose work was not
-- asked to stop.
select g.generation_id, g.tenant_id, g.is_kept, g.actor, g.reason
from holdfast.dataset_generation g
where g.state = 'r' and g.generation_id > @generation_id
  and (
    not g.is_kept
    or exists (
      select from holdfast.dataset_build b
      left join holdfast.live t on t.task_id = b.task_id and t.cancel_at is null
      left join holdfast.run r on r.run_id = b.task_id and r.state = 'o' and r.canceled_at is null
      where b.generation_id = g.generation_id and (t.task_id is not null or r.run_id is not null)
    )
  )
order by g.generation_id
limit @limit;

-- name: lock_leaving(generation_id) -> rows
-- Lock a generation whose tables are to be dropped; skip it if another process has locked it.
select g.generation_id
from holdfast.dataset_generation g
where g.generation_id = @generation_id and g.state = 'r' and not g.is_kept
for update of g skip locked;

-- name: drop_generation_tables(generation_id) -> nothing
-- Drop the tables of a generation.
select holdfast.drop_generation_tables(@generation_id);

-- name: delete_stages(generation_id) -> nothing
-- Delete all parts of a generation before its tables are dropped: a staging transaction locks its part first, then the
-- table.
delete from holdfast.dataset_stage s
where s.generation_id = @generation_id;

-- name: end_generation(generation_id) -> rows
-- Mark a generation as dropped and delete its builders and owed rows, under its lock.
with built as (
  delete from holdfast.dataset_build b
  where b.generation_id = @generation_id
),
owed as (
  delete from holdfast.dataset_owed o
  where o.generation_id = @generation_id
)
update holdfast.dataset_generation g
set state = 'd', rows = 0
where g.generation_id = @generation_id and g.state = 'r'
returning g.generation_id;

-- name: count_rows(generation_id, partition?) -> value?
-- Return how many rows a generation, or one partition of it, has.
select holdfast.count_rows(@generation_id, @partition);

-- name: list_generations(tenant_id, name?) -> rows
-- nullable: cut_over_at, ended_at
-- Return every generation of every dataset, or of one, the newest first.
select d.name, d.place, d.current_version, g.generation_id, g.version, g.state::text as state, g.is_kept, g.columns,
  g.types, g.key, g.rows, g.created_at, g.cut_over_at, g.ended_at, g.actor, g.reason,
  (select count(*)
    from holdfast.dataset_build b
    left join holdfast.live t on t.task_id = b.task_id
    left join holdfast.run r on r.run_id = b.task_id
    where b.generation_id = g.generation_id and (t.task_id is not null or r.state = 'o')) as unfinished,
  (select count(*)
    from holdfast.dataset_build b
    left join holdfast.ended e on e.task_id = b.task_id
    left join holdfast.run r on r.run_id = b.task_id
    where b.generation_id = g.generation_id and (e.state = 'f' or r.state = 'f')
      and not holdfast.is_replaced(b.task_id, coalesce(r.run_id, e.run_id))) as failed
from holdfast.dataset d
join holdfast.dataset_generation g on g.dataset_id = d.dataset_id
where d.tenant_id = @tenant_id and (@name::text is null or d.name = @name)
order by d.name, g.version desc;

-- name: recent_commits(tenant_id, name, limit) -> rows
-- Return the last commits to the generations of a dataset.
select c.task_id::text as task_id, c.attempt, g.version, c.mode, c.partition, c.rows_given, c.rows_added,
  c.rows_removed, c.committed_at
from holdfast.dataset d
join holdfast.dataset_generation g on g.dataset_id = d.dataset_id
join holdfast.dataset_commit c on c.generation_id = g.generation_id
where d.tenant_id = @tenant_id and d.name = @name
order by c.committed_at desc, c.task_id desc, c.part desc
limit @limit;
