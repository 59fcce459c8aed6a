-- name: a_dataset_shows_its_current_generation() -> rows
-- The version that a dataset names is its one current generation.
select d.dataset_id, d.name, d.current_version
from holdfast.dataset d
left join holdfast.dataset_generation g on g.dataset_id = d.dataset_id and g.state = 'c'
where g.version is distinct from d.current_version;

-- name: every_generation_has_its_tables() -> rows
-- A generation has its table of rows and its staging table until it is dropped, and none afterwards.
select g.generation_id, d.name, g.version
from holdfast.dataset_generation g
join holdfast.dataset d on d.dataset_id = g.dataset_id
cross join holdfast.generation_names(g.generation_id) as n
where (g.state <> 'd') <> (to_regclass(n.rows_table) is not null)
  or (g.state <> 'd') <> (to_regclass(n.stage_table) is not null);

-- name: readers_see_the_current_generation() -> rows
-- The view of a dataset exists and reads the table of its current generation.
select d.name, d.current_version
from holdfast.dataset d
join holdfast.dataset_generation g on g.dataset_id = d.dataset_id and g.version = d.current_version
cross join holdfast.generation_names(g.generation_id) as n
where not exists (
  select
  from pg_rewrite r
  join pg_depend p on p.classid = 'pg_rewrite'::regclass and p.objid = r.oid and p.refclassid = 'pg_class'::regclass
  where r.ev_class = to_regclass(format('%I.%I', d.place, d.name)) and p.refobjid = to_regclass(n.rows_table)
);

-- name: rows_of_datasets_are_counted() -> rows
-- A generation has as many rows as its commits recorded: none is missing and none is duplicated.
select g.generation_id, d.name, g.version, g.rows, holdfast.count_rows(g.generation_id, null) as found
from holdfast.dataset_generation g
join holdfast.dataset d on d.dataset_id = g.dataset_id
where g.state <> 'd' and holdfast.count_rows(g.generation_id, null) is distinct from g.rows;

-- name: a_commit_belongs_to_a_completed_attempt() -> rows
-- Every commit belongs to an accepted completion, as long as its history is kept.
select c.task_id, c.attempt
from holdfast.dataset_commit c
join holdfast.block b on c.task_id between b.first_id and b.last_id
left join holdfast.attempt a on a.task_id = c.task_id and a.attempt = c.attempt and a.state = 'c'
where a.task_id is null;

-- name: staged_rows_are_swept() -> rows
-- Warning: an attempt that has ended staged rows more than ten minutes ago, and they were not swept. Does any server
-- run?
select s.task_id, s.attempt
from holdfast.dataset_stage s
left join holdfast.live t on t.task_id = s.task_id and t.attempt = s.attempt and t.state = 'r'
where t.task_id is null and s.staged_at < holdfast.instant() - interval '10 minutes';

-- name: owed_rows_are_taken_back() -> rows
-- Warning: a run completed again more than ten minutes ago, and rows that it had appended before still exist. Does any
-- server run?
select o.task_id, o.generation_id
from holdfast.dataset_owed o
join holdfast.run r on r.run_id = o.run_id
join holdfast.dataset_generation g on g.generation_id = o.generation_id
where r.state = 'c' and r.ended_at < holdfast.instant() - interval '10 minutes' and g.state in ('b', 'c');
