-- name: ensure_dataset
-- Give a dataset a row, unless it has one.
insert into holdfast.dataset (tenant_id, name, place)
values ($1, $2, $3)
on conflict (tenant_id, name) do nothing;

-- name: schema_exists
-- Is there a schema of this name?
select exists (select from pg_namespace n where n.nspname = $1);

-- name: lock_dataset
-- Become the one who may change which generations a dataset has and which of them it shows.
select d.dataset_id, d.name, d.place, d.current_version
from holdfast.dataset d
where d.tenant_id = $1 and d.name = $2
for no key update of d;

-- name: find_generation
-- One generation of a dataset, as it was declared.
select g.generation_id, g.dataset_id, d.place, g.version, g.state::text as state, g.columns, g.types, g.key
from holdfast.dataset d
join holdfast.dataset_generation g on g.dataset_id = d.dataset_id
where d.tenant_id = $1 and d.name = $2 and g.version = $3;

-- name: add_generation
-- Begin to build a generation. Under the lock of its dataset.
insert into holdfast.dataset_generation (tenant_id, dataset_id, version, columns, types, key)
values ($1, $2, $3, $4, $5, $6)
returning generation_id;

-- name: make_generation
-- Make the tables of a generation.
select holdfast.make_generation($1);

-- name: open_stage
-- Begin a part of a running attempt, and remember that its task writes to the generation. The lease is the fence: an
-- attempt that lost it stages nothing. Said twice, it is begun once.
with part as (
  insert into holdfast.dataset_stage (lease_token, task_id, attempt, part, tenant_id, generation_id, mode, partition)
  select t.lease_token, t.task_id, t.attempt, $4, t.tenant_id, g.generation_id, $6, $7
  from holdfast.live t
  join holdfast.dataset_generation g on g.generation_id = $5 and g.tenant_id = t.tenant_id
  where t.task_id = $1 and t.attempt = $2 and t.lease_token = $3 and t.state = 'r' and g.state in ('b', 'c')
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

-- name: why_not_staged
-- What the fence of a stage would have to say: the state of the generation, and whether the lease is current.
select g.state::text as state,
  exists (
    select from holdfast.live t where t.task_id = $1 and t.attempt = $2 and t.lease_token = $3 and t.state = 'r'
  ) as is_leased
from holdfast.dataset_generation g
where g.generation_id = $4;

-- name: grow_stage
-- Count a batch of rows that is staged in this transaction. The count before is named: a batch said twice counts once. A
-- part that was swept is not there any more, and neither may its rows be.
update holdfast.dataset_stage s
set rows = s.rows + $5
where s.task_id = $1 and s.lease_token = $2 and s.part = $3 and s.rows = $4
returning s.rows;

-- name: read_stage
-- How many rows of a part are staged.
select s.rows
from holdfast.dataset_stage s
where s.task_id = $1 and s.lease_token = $2 and s.part = $3;

-- name: lock_fence
-- Hold a running attempt by its lease before its rows are moved: who lost the lease finds nothing.
select t.task_id, t.generation, t.run_id, t.tenant_id
from holdfast.live t
where t.task_id = $1 and t.attempt = $2 and t.lease_token = $3 and t.state = 'r'
for update of t;

-- name: lock_generations
-- One transaction at a time writes to a generation or changes its state. Always in this order, after task rows.
select g.generation_id, g.dataset_id, g.version, g.state::text as state, g.tenant_id, cardinality(g.key) > 0 as is_keyed,
  d.name
from holdfast.dataset_generation g
join holdfast.dataset d on d.dataset_id = g.dataset_id
where g.generation_id = any($1::int[]) or g.dataset_id = any($2::int[])
order by g.generation_id
for no key update of g;

-- name: lock_datasets
-- The datasets of some generations, before any generation is locked: a cut-over changes two of them.
select d.dataset_id
from holdfast.dataset d
where d.dataset_id = any(array(
  select g.dataset_id from holdfast.dataset_generation g where g.generation_id = any($1::int[])
))
order by d.dataset_id
for no key update of d;

-- name: take_stage
-- Take a part out of the stage to commit it, if all its rows arrived.
delete from holdfast.dataset_stage s
where s.task_id = $1 and s.lease_token = $2 and s.part = $3 and s.generation_id = $4 and s.rows = $5
returning s.mode, s.partition;

-- name: take_back
-- Take out what earlier generations of a task, and the tasks in whose place it is there, appended to a partition without
-- a key.
select holdfast.take_back($1, $2, $3) as removed;

-- name: move_staged
-- Move the rows of a part from the stage into the generation.
select staged, removed, added
from holdfast.move_staged($1, $2, $3, $4, $5, $6);

-- name: add_commit
-- Write down what a part did and count the generation's rows, only while it takes any.
with counted as (
  update holdfast.dataset_generation g
  set rows = g.rows + $8 - $9
  where g.generation_id = $4 and g.state in ('b', 'c')
  returning g.generation_id, g.tenant_id
),
told as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'dataset.committed', array[$1::bigint], array[$2::int],
    jsonb_build_object('generation_id', generation_id, 'mode', $5::text, 'partition', $6::text, 'added', $8::bigint,
      'removed', $9::bigint)
  from counted
)
insert into holdfast.dataset_commit (
  task_id, attempt, part, tenant_id, generation_id, mode, partition, rows_given, rows_added, rows_removed
)
select $1, $2, $3, tenant_id, generation_id, $5, $6, $7, $8, $9
from counted
returning task_id;

-- name: stale_stages
-- Parts whose attempt is over or lost its lease: nobody will commit them. Several sweepers share them out.
select s.generation_id, s.task_id, s.lease_token, s.part
from holdfast.dataset_stage s
left join holdfast.live t on t.task_id = s.task_id and t.lease_token = s.lease_token
where t.task_id is null
limit $1
for update of s skip locked;

-- name: drop_staged
-- Delete the rows of a stale part.
select holdfast.drop_staged($1, $2, $3, $4);

-- name: forget_stage
-- Forget a stale part. Under its lock.
delete from holdfast.dataset_stage s
where s.task_id = $1 and s.lease_token = $2 and s.part = $3
returning s.part;

-- name: forget_commits
-- Forget commits that are older than promised. The rows stay.
delete from holdfast.dataset_commit c
where ctid = any(array(
  select o.ctid
  from holdfast.dataset_commit o
  where o.committed_at < holdfast.instant() - make_interval(secs => $1::double precision * 86400)
  order by o.committed_at
  limit $2
));

-- name: add_builds
-- Say that tasks and runs are there to build a generation, while it can be built. What was said before, as of work under
-- a key that is handed in again, is said once.
insert into holdfast.dataset_build (generation_id, task_id)
select g.generation_id, b.task_id
from (
  select g.generation_id
  from holdfast.dataset_generation g
  where g.generation_id = $1 and g.state in ('b', 'c')
  for share of g
) g
cross join unnest($2::bigint[]) as b (task_id)
on conflict (generation_id, task_id) do update
set task_id = excluded.task_id
returning task_id;

-- name: builds_left
-- How much of the work on a generation is not over, and how much failed; the task and the run that ask do not count, nor
-- does what others were started for instead.
select count(*) filter (where t.task_id is not null or r.state = 'o') as unfinished,
  count(*) filter (where e.state = 'f' or r.state = 'f') as failed
from holdfast.dataset_build b
left join holdfast.live t on t.task_id = b.task_id
left join holdfast.ended e on e.task_id = b.task_id
left join holdfast.run r on r.run_id = b.task_id
where b.generation_id = $1 and b.task_id <> coalesce($2::bigint, -1) and b.task_id <> coalesce($3::bigint, -1)
  and not holdfast.is_replaced(b.task_id, coalesce(r.run_id, e.run_id));

-- name: builds_to_cancel
-- Work on a generation that is not over and was not asked to stop yet: tasks, and runs.
select b.task_id, r.run_id is not null as is_run
from holdfast.dataset_build b
left join holdfast.live t on t.task_id = b.task_id and t.cancel_at is null
left join holdfast.run r on r.run_id = b.task_id and r.state = 'o' and r.canceled_at is null
where b.generation_id = $1 and (t.task_id is not null or r.run_id is not null)
order by b.task_id
limit $2;

-- name: supersede
-- The current generation of a dataset becomes an old one. Under the lock of the dataset.
update holdfast.dataset_generation g
set state = 'o'
where g.dataset_id = $1 and g.state = 'c'
returning g.version;

-- name: cut_over
-- Make a generation the current one. Under the lock of its dataset; `show_generation` follows in the same transaction.
with fresh as (
  update holdfast.dataset_generation g
  set state = 'c', cut_over_at = holdfast.instant(), actor = $3, reason = $4
  where g.dataset_id = $1 and g.version = $2 and g.state in ('b', 'o')
  returning g.dataset_id, g.tenant_id, g.version, g.rows
),
told as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'dataset.cut_over', '{}', '{}',
    jsonb_build_object('dataset_id', dataset_id, 'version', version, 'rows', rows, 'actor', $3::text, 'reason', $4::text)
  from fresh
)
update holdfast.dataset d
set current_version = fresh.version
from fresh
where d.dataset_id = fresh.dataset_id
returning d.dataset_id;

-- name: show_generation
-- Let the view of a dataset show its current generation.
select holdfast.show_generation($1, $2);

-- name: roll_back
-- Take a generation out of use: it takes no more rows, its unfinished work is to be canceled and, unless it is kept, its
-- tables are to go. Under the lock of its dataset.
with gone as (
  update holdfast.dataset_generation g
  set state = 'r', is_kept = $4, ended_at = holdfast.instant(), actor = $5, reason = $6
  where g.dataset_id = $1 and g.version = $2 and g.state = any($3::"char"[])
  returning g.generation_id, g.dataset_id, g.tenant_id, g.version
),
told as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'dataset.rolled_back', '{}', '{}',
    jsonb_build_object('dataset_id', dataset_id, 'version', version, 'actor', $5::text, 'reason', $6::text)
  from gone
)
select generation_id
from gone;

-- name: previous_generation
-- What the view of a dataset showed before.
select g.version
from holdfast.dataset_generation g
where g.dataset_id = $1 and g.state = 'o' and g.cut_over_at is not null
order by g.cut_over_at desc
limit 1;

-- name: generations_leaving
-- Generations that were rolled back and whose tables are to go, or whose work was not asked to stop: the next page of them.
select g.generation_id, g.tenant_id, g.is_kept, g.actor, g.reason
from holdfast.dataset_generation g
where g.state = 'r' and g.generation_id > $2
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
limit $1;

-- name: lock_leaving
-- Hold a generation whose tables are to go; somebody else who does it is not waited for.
select g.generation_id
from holdfast.dataset_generation g
where g.generation_id = $1 and g.state = 'r' and not g.is_kept
for update of g skip locked;

-- name: unmake_generation
-- Drop the tables of a generation.
select holdfast.unmake_generation($1);

-- name: forget_stages
-- Nothing of a generation is staged any more. Before its tables go: who stages holds a part, then asks for the table.
delete from holdfast.dataset_stage s
where s.generation_id = $1;

-- name: end_generation
-- The tables of a generation are gone, and with them who built it. Under its lock.
with built as (
  delete from holdfast.dataset_build b
  where b.generation_id = $1
)
update holdfast.dataset_generation g
set state = 'd', rows = 0
where g.generation_id = $1 and g.state = 'r'
returning g.generation_id;

-- name: count_rows
-- How many rows a generation holds, or one partition of it.
select holdfast.count_rows($1, $2);

-- name: list_generations
-- Every generation of every dataset, or of one, the newest first.
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
where d.tenant_id = $1 and ($2::text is null or d.name = $2)
order by d.name, g.version desc;

-- name: recent_commits
-- The last commits to the generations of a dataset.
select c.task_id::text as task_id, c.attempt, g.version, c.mode, c.partition, c.rows_given, c.rows_added,
  c.rows_removed, c.committed_at
from holdfast.dataset d
join holdfast.dataset_generation g on g.dataset_id = d.dataset_id
join holdfast.dataset_commit c on c.generation_id = g.generation_id
where d.tenant_id = $1 and d.name = $2
order by c.committed_at desc, c.task_id desc, c.part desc
limit $3;
