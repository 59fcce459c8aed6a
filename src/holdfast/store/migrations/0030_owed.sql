-- Rows owed: what tasks appended to datasets without a key before they were reset or replaced. Whoever is there in their
-- place takes it back with its completion; what is left goes when their run has completed again.

create table holdfast.dataset_owed (
  generation_id int not null,
  task_id bigint not null,
  -- The run that runs again.
  run_id bigint not null references holdfast.run on delete cascade,
  tenant_id int not null,
  -- The last attempt whose rows are meant. Workers of before put others in their place without taking this away.
  attempt int not null,
  primary key (generation_id, task_id),
  foreign key (tenant_id, generation_id) references holdfast.dataset_generation (tenant_id, generation_id)
    on delete cascade
);
create index dataset_owed_run on holdfast.dataset_owed (run_id);

-- Take out of a generation what a span of tasks owes, whatever partitions it is in. Commits say which these are; where
-- they are forgotten already, the whole table is looked through.
create function holdfast.take_back_owed(which int, first_id bigint, last_id bigint) returns bigint
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  named record;
  tasks bigint[];
  unsaid bigint[];
  removed bigint;
  more bigint := 0;
begin
  select * into strict named from holdfast.generation_names(which);
  with owed as (
    delete from holdfast.dataset_owed o
    where o.generation_id = which and o.task_id between first_id and last_id
    returning o.task_id, o.attempt
  )
  select array_agg(owed.task_id) into tasks
  from owed
  where not exists (
    select from holdfast.dataset_commit c
    where c.task_id = owed.task_id and c.generation_id = which and c.attempt > owed.attempt
  );
  if tasks is null then
    return 0;
  end if;
  execute format(
    'delete from %s r
     using (
       select distinct c.task_id, c.partition
       from holdfast.dataset_commit c
       where c.task_id = any($1) and c.generation_id = $2
     ) said
     where r._partition = said.partition and r._task_id = said.task_id', named.rows_table) using tasks, which;
  get diagnostics removed = row_count;
  select array_agg(t.task_id) into unsaid
  from unnest(tasks) as t (task_id)
  where not exists (
    select from holdfast.dataset_commit c where c.task_id = t.task_id and c.generation_id = which
  );
  if unsaid is not null then
    execute format('delete from %s r where r._task_id = any($1)', named.rows_table) using unsaid;
    get diagnostics more = row_count;
  end if;
  return removed + more;
end $$;
