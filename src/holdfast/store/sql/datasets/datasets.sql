-- name: ensure_dataset(tenant_id, name, place) -> nothing
-- Insert the row of a dataset, unless it exists.
insert into holdfast.dataset (tenant_id, name, place)
values (@tenant_id, @name, @place)
on conflict (tenant_id, name) do nothing;

-- name: schema_exists(schema) -> value?
-- Return whether a schema with this name exists.
select exists (select from pg_namespace n where n.nspname = @schema);

-- name: lock_dataset(tenant_id, name) -> row?
-- nullable: current_version
-- Lock a dataset, to change its generations or the one that it shows.
select d.dataset_id, d.name, d.place, d.current_version
from holdfast.dataset d
where d.tenant_id = @tenant_id and d.name = @name
for no key update of d;

-- name: find_generation(tenant_id, name, version) -> row?
-- Return one generation of a dataset, as it was declared.
select g.generation_id, g.dataset_id, d.place, g.version, g.state::text as state, g.columns, g.types, g.key
from holdfast.dataset d
join holdfast.dataset_generation g on g.dataset_id = d.dataset_id
where d.tenant_id = @tenant_id and d.name = @name and g.version = @version;

-- name: add_generation(tenant_id, dataset_id, version, columns, types, key) -> value
-- Begin a generation, under the lock of its dataset.
insert into holdfast.dataset_generation (tenant_id, dataset_id, version, columns, types, key)
values (@tenant_id, @dataset_id, @version, @columns, @types, @key)
returning generation_id;

-- name: create_generation_tables(generation_id) -> nothing
-- Create the tables of a generation.
select holdfast.create_generation_tables(@generation_id);

-- name: open_stage(task_id, attempt, lease_token, part, generation_id, mode, partition) -> rows
-- Begin a part of a running attempt, and record that its task writes to the generation. The lease is the fence: an
-- attempt that lost it stages nothing. Idempotent.
with part as (
  insert into holdfast.dataset_stage (lease_token, task_id, attempt, part, tenant_id, generation_id, mode, partition)
  select t.lease_token, t.task_id, t.attempt, @part, t.tenant_id, g.generation_id, @mode, @partition
  from holdfast.live t
  join holdfast.dataset_generation g on g.generation_id = @generation_id and g.tenant_id = t.tenant_id
  where t.task_id = @task_id and t.attempt = @attempt and t.lease_token = @lease_token and t.state = 'r' and g.state in ('b', 'c')
  on conflict (task_id, lease_token, part) do update
  set mode = excluded.mode
  returning task_id, generation_id
),
linked as (
  insert into holdfast.dataset_build (generation_id, task_id)
  select generation_id, task_id
  from part
  on conflict (generation_id, task_id) do nothing
)
select task_id
from part;

-- name: why_not_staged(task_id, attempt, lease_token, generation_id) -> row
-- Return why a part could not begin: the state of the generation, and whether the lease is current.
select g.state::text as state,
  exists (
    select from holdfast.live t where t.task_id = @task_id and t.attempt = @attempt and t.lease_token = @lease_token and t.state = 'r'
  ) as is_leased
from holdfast.dataset_generation g
where g.generation_id = @generation_id;

-- name: grow_stage(task_id, lease_token, part, rows, new_rows) -> rows
-- Count a batch of rows that is staged in this transaction. The count before is the guard: a repeated batch counts
-- once. A part that was swept has no row any more, and its rows must not be stored either.
update holdfast.dataset_stage s
set rows = s.rows + @new_rows
where s.task_id = @task_id and s.lease_token = @lease_token and s.part = @part and s.rows = @rows
returning s.rows;

-- name: read_stage(task_id, lease_token, part) -> value?
-- Return how many rows of a part are staged.
select s.rows
from holdfast.dataset_stage s
where s.task_id = @task_id and s.lease_token = @lease_token and s.part = @part;

-- name: lock_fence(task_id, attempt, lease_token) -> row?
-- nullable: run_id
-- Lock a running attempt by its lease before its rows are moved: an attempt that lost the lease is not found.
select t.task_id, t.generation, t.run_id, t.tenant_id
from holdfast.live t
where t.task_id = @task_id and t.attempt = @attempt and t.lease_token = @lease_token and t.state = 'r'
for update of t;

-- name: lock_generations(generation_ids, dataset_ids) -> rows
-- Lock generations, so that one transaction at a time writes to them or changes their state. Always in this order and
-- before task rows: a transaction that waits here does not block heartbeats, so its leases can be renewed.
select g.generation_id, g.dataset_id, g.version, g.state::text as state, g.tenant_id, cardinality(g.key) > 0 as is_keyed,
  d.name
from holdfast.dataset_generation g
join holdfast.dataset d on d.dataset_id = g.dataset_id
where g.generation_id = any(@generation_ids::int[]) or g.dataset_id = any(@dataset_ids::int[])
order by g.generation_id
for no key update of g;

-- name: lock_datasets(generation_ids) -> rows
-- Lock the datasets of some generations, before any generation: a cut-over changes two generations.
select d.dataset_id
from holdfast.dataset d
where d.dataset_id = any(array(
  select g.dataset_id from holdfast.dataset_generation g where g.generation_id = any(@generation_ids::int[])
))
order by d.dataset_id
for no key update of d;

-- name: take_stage(task_id, lease_token, part, generation_id, rows) -> row?
-- Remove a part from the stage to commit it, if all its rows arrived.
delete from holdfast.dataset_stage s
where s.task_id = @task_id and s.lease_token = @lease_token and s.part = @part and s.generation_id = @generation_id and s.rows = @rows
returning s.mode, s.partition;

-- name: remove_appended_rows(generation_id, partition, task_id) -> value
-- Delete rows without a key that earlier generations of a task, and the tasks that it replaces, appended: to this
-- partition, and what they owe in others.
select holdfast.remove_appended_rows(@generation_id, @partition, @task_id) + sum(holdfast.remove_owed_rows(@generation_id, t.first_id, t.last_id))::bigint as removed
from (
  select @task_id::bigint as first_id, @task_id::bigint as last_id
  union all
  select b.first_id, b.last_id from holdfast.predecessor_tasks(@task_id) b
) t;

-- name: owe_rows(run_id, tenant_id, node_nos, run_ids, generation) -> nothing
-- Record the rows without a key that reset nodes of a run (@node_nos), their dropped items, and the replaced runs with their
-- descendants (@run_ids) have appended. Items with which a node continues (@generation) owe nothing. Requires the lock of the run.
with recursive below as (
  select c.run_id, c.nodes
  from holdfast.run c
  where c.run_id = any(@run_ids::bigint[])
  union
  select c.run_id, c.nodes
  from below
  join holdfast.run c on c.parent_run_id = below.run_id
),
span as materialized (
  select @run_id::bigint + 1 + n.node_no as first_id, @run_id::bigint + 1 + n.node_no as last_id
  from unnest(@node_nos::int[]) as n (node_no)
  union all
  select p.items_first, p.items_first + p.items - 1
  from holdfast.past_items p
  where p.run_id = @run_id and p.node_no = any(@node_nos::int[]) and p.kept_for is distinct from @generation::smallint
  union all
  select below.run_id + 1, below.run_id + below.nodes
  from below
  union all
  select s.items_first, s.items_first + s.items - 1
  from below
  join holdfast.item_span s on s.run_id = below.run_id
),
written as (
  select g.generation_id, b.task_id, max(c.attempt) as attempt
  from holdfast.dataset_generation g
  cross join span
  join holdfast.dataset_build b on b.generation_id = g.generation_id and b.task_id between span.first_id and span.last_id
  left join holdfast.dataset_commit c on c.task_id = b.task_id and c.generation_id = g.generation_id
  where g.tenant_id = @tenant_id and g.state in ('b', 'c') and cardinality(g.key) = 0
  group by g.generation_id, b.task_id
)
insert into holdfast.dataset_owed as o (generation_id, task_id, run_id, tenant_id, attempt)
select w.generation_id, w.task_id, @run_id, @tenant_id, coalesce(w.attempt, 0)
from written w
where w.attempt is not null
  or exists (select from holdfast.attempt a where a.task_id = w.task_id and a.state = 'c')
on conflict (generation_id, task_id) do update
set run_id = excluded.run_id, attempt = excluded.attempt;

-- name: owed_rows(limit) -> rows
-- Return the owed rows of runs that have completed since, where they can be deleted.
select o.generation_id, o.task_id
from holdfast.dataset_owed o
join holdfast.run r on r.run_id = o.run_id
join holdfast.dataset_generation g on g.generation_id = o.generation_id
where r.state = 'c' and g.state in ('b', 'c')
order by o.generation_id, o.task_id
limit @limit;

-- name: remove_owed_rows(generation_id, task_ids) -> nothing
-- Delete the rows that some tasks owe to a generation, while it accepts rows, and update its count. Requires its lock.
update holdfast.dataset_generation g
set rows = g.rows - taken.removed
from (
  select coalesce(sum(holdfast.remove_owed_rows(@generation_id, t.task_id, t.task_id)), 0)::bigint as removed
  from unnest(@task_ids::bigint[]) as t (task_id)
  join holdfast.dataset_generation o on o.generation_id = @generation_id and o.state in ('b', 'c')
) taken
where g.generation_id = @generation_id
returning taken.removed;

-- name: move_staged(generation_id, task_id, lease_token, part, target, mode) -> row
-- Move the rows of a part from the stage into the generation.
select staged, removed, added
from holdfast.move_staged(@generation_id, @task_id, @lease_token, @part, @target, @mode);

-- name: add_commit(task_id, attempt, part, generation_id, mode, partition, rows_given, rows_added, rows_removed) ->
--   rows
-- Record the commit of a part and count the generation's rows, only while it accepts rows.
with counted as (
  update holdfast.dataset_generation g
  set rows = g.rows + @rows_added - @rows_removed
  where g.generation_id = @generation_id and g.state in ('b', 'c')
  returning g.generation_id, g.tenant_id
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'dataset.committed', array[@task_id::bigint], array[@attempt::int],
    jsonb_build_object('generation_id', generation_id, 'mode', @mode::text, 'partition', @partition::text, 'added', @rows_added::bigint,
      'removed', @rows_removed::bigint)
  from counted
)
insert into holdfast.dataset_commit (
  task_id, attempt, part, tenant_id, generation_id, mode, partition, rows_given, rows_added, rows_removed
)
select @task_id, @attempt, @part, tenant_id, generation_id, @mode, @partition, @rows_given, @rows_added, @rows_removed
from counted
returning task_id;

-- name: stale_stages(limit) -> rows
-- Lock parts whose attempt has ended or lost its lease: they will never be committed. Concurrent sweepers skip each
-- other's rows.
select s.generation_id, s.task_id, s.lease_token, s.part
from holdfast.dataset_stage s
left join holdfast.live t on t.task_id = s.task_id and t.lease_token = s.lease_token
where t.task_id is null
limit @limit
for update of s skip locked;

-- name: drop_staged(generation_id, task_id, lease_token, part) -> nothing
-- Delete the rows of a stale part.
select holdfast.drop_staged(@generation_id, @task_id, @lease_token, @part);

-- name: delete_stage(task_id, lease_token, part) -> nothing
-- Delete a stale part, under its lock.
delete from holdfast.dataset_stage s
where s.task_id = @task_id and s.lease_token = @lease_token and s.part = @part
returning s.part;

-- name: delete_old_commits(days, limit) -> value
-- Delete a batch of commit records that exceed their retention; return how many. The rows stay.
with deleted as (
  delete from holdfast.dataset_commit c
  where ctid = any(array(
    select o.ctid
    from holdfast.dataset_commit o
    where o.committed_at < holdfast.instant() - make_interval(secs => @days::double precision * 86400)
    order by o.committed_at
    limit @limit
  ))
  returning c.task_id
)
select count(*)
from deleted;
