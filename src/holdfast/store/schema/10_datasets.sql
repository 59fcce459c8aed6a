-- Datasets: real tables that completed attempts write to.
--
-- A dataset has generations, one table each; readers use a view that shows the current one. An attempt stages its
-- rows while it runs, and the transaction that accepts its completion moves them. Tables and views that are made at
-- run time are made by the functions below, from checked and quoted names. Those functions run with their owner's
-- rights where a tenant calls them; generation_names(), which all of them call, refuses a dataset of another tenant.

create schema if not exists holdfast_data;

create table holdfast.dataset (
  dataset_id int generated always as identity primary key,
  tenant_id int not null references holdfast.tenant,
  name text not null check (name ~ '^[a-z][a-z0-9_]{0,39}$'),
  -- The schema of its view and tables.
  place text not null check (place ~ '^[a-z_][a-z0-9_]{0,62}$'),
  -- The version that the view shows. Readers check it under their own snapshot, see is_snapshot_current().
  current_version int,
  created_at timestamptz not null default holdfast.instant(),
  unique (tenant_id, name),
  unique (place, name),
  unique (tenant_id, dataset_id)
);

-- One generation. States: b being built, c current, o superseded and kept, r rolled back, d its tables are dropped.
create table holdfast.dataset_generation (
  generation_id int generated always as identity primary key,
  tenant_id int not null,
  dataset_id int not null,
  version int not null check (version > 0),
  state "char" not null default 'b' constraint generation_state check (state in ('b', 'c', 'o', 'r', 'd')),
  -- Of a generation that was rolled back: whether its tables stay until an operator drops them.
  is_kept boolean not null default false,
  columns text[] not null,
  types text[] not null,
  key text[] not null,
  -- How many rows its table holds, counted by the commits.
  rows bigint not null default 0 constraint generation_rows check (rows >= 0),
  created_at timestamptz not null default holdfast.instant(),
  cut_over_at timestamptz,
  ended_at timestamptz,
  actor text not null default '',
  reason text not null default '',
  unique (dataset_id, version),
  foreign key (tenant_id, dataset_id) references holdfast.dataset (tenant_id, dataset_id) on delete cascade,
  constraint generation_shape check (
    cardinality(columns) between 1 and 200 and cardinality(types) = cardinality(columns) and key <@ columns
    and types <@ array['text', 'bigint', 'double', 'boolean', 'timestamptz', 'date', 'numeric', 'jsonb', 'bytea']
  ),
  constraint generation_tenant unique (tenant_id, generation_id)
);
create unique index generation_current on holdfast.dataset_generation (dataset_id) where state = 'c';
-- Generations whose tables have yet to be dropped.
create index generation_rolled_back on holdfast.dataset_generation (generation_id) where state = 'r';

-- Work that belongs to a generation: tasks and runs that were started to build it, and every task that wrote to it.
-- While some of it is not over, the generation is not cut over; a rollback cancels it.
create table holdfast.dataset_build (
  generation_id int not null references holdfast.dataset_generation on delete cascade,
  task_id bigint not null,
  primary key (generation_id, task_id)
);

-- What attempts have staged: one row per part, which is one `append` or `replace` of one attempt.
create table holdfast.dataset_stage (
  task_id bigint not null,
  lease_token uuid not null,
  rows bigint not null default 0,
  attempt int not null,
  part int not null,
  tenant_id int not null,
  generation_id int not null references holdfast.dataset_generation on delete cascade,
  mode text not null check (mode in ('append', 'replace')),
  partition text not null,
  staged_at timestamptz not null default holdfast.instant(),
  primary key (task_id, lease_token, part),
  constraint stage_tenant foreign key (tenant_id, generation_id)
    references holdfast.dataset_generation (tenant_id, generation_id) on delete cascade
) with (fillfactor = 70);

-- What was committed: append-only, one row per part of a completed attempt.
create table holdfast.dataset_commit (
  task_id bigint not null,
  attempt int not null,
  part int not null,
  tenant_id int not null,
  generation_id int not null references holdfast.dataset_generation on delete cascade,
  mode text not null check (mode in ('append', 'replace')),
  partition text not null,
  rows_given bigint not null,
  rows_added bigint not null,
  rows_removed bigint not null,
  committed_at timestamptz not null default holdfast.instant(),
  primary key (task_id, attempt, part),
  constraint commit_counts check (rows_added between 0 and rows_given and rows_removed >= 0),
  constraint commit_tenant foreign key (tenant_id, generation_id)
    references holdfast.dataset_generation (tenant_id, generation_id) on delete cascade
);
create index commit_recent on holdfast.dataset_commit (generation_id, committed_at desc);
create index commit_age on holdfast.dataset_commit (committed_at);

-- Rows to remove: what tasks appended to a dataset without a key before they were reset or replaced. The task that
-- stands in their place removes them with its completion; what is left is removed when their run has completed again.
create table holdfast.dataset_owed (
  generation_id int not null,
  task_id bigint not null,
  -- The run that runs again.
  run_id bigint not null references holdfast.run on delete cascade,
  tenant_id int not null,
  -- The last attempt whose rows are meant.
  attempt int not null,
  primary key (generation_id, task_id),
  foreign key (tenant_id, generation_id) references holdfast.dataset_generation (tenant_id, generation_id)
    on delete cascade
);
create index dataset_owed_run on holdfast.dataset_owed (run_id);

-- The quoted names of a generation's tables and columns. Raises no_data_found for a generation of another tenant.
create function holdfast.generation_names(
  which int, out rows_table text, out stage_table text, out column_list text, out is_keyed boolean
) language plpgsql stable as $$
begin
  select format('%I.%I', d.place, d.name || '_v' || g.version),
    format('%I.%I', d.place, d.name || '_v' || g.version || '_staged'),
    (select string_agg(quote_ident(c.name), ', ' order by c.nth) from unnest(g.columns) with ordinality as c (name, nth)),
    cardinality(g.key) > 0
  into rows_table, stage_table, column_list, is_keyed
  from holdfast.dataset_generation g
  join holdfast.dataset d on d.dataset_id = g.dataset_id
  where g.generation_id = which and holdfast.may_act_for(g.tenant_id);
  if not found then
    raise exception 'There is no generation %.', which using errcode = 'no_data_found';
  end if;
end $$;

-- Create the tables of a generation. Only for the engine: apps declare datasets.
create function holdfast.create_generation_tables(which int) returns void language plpgsql as $$
declare
  named record;
  g holdfast.dataset_generation;
  columns text;
  key_columns text;
begin
  select * into strict named from holdfast.generation_names(which);
  select * into strict g from holdfast.dataset_generation where generation_id = which;
  select string_agg(
    quote_ident(c.name) || case c.type when 'double' then ' double precision' else ' ' || c.type end
      || case when c.name = any(g.key) then ' not null' else '' end, ', ' order by c.nth)
  into columns
  from unnest(g.columns, g.types) with ordinality as c (name, type, nth);
  select string_agg(quote_ident(k.name), ', ' order by k.nth) into key_columns
  from unnest(g.key) with ordinality as k (name, nth);
  execute format('create table %s (%s, _partition text not null, _task_id bigint not null)', named.rows_table, columns);
  execute format('create index on %s (_partition, _task_id)', named.rows_table);
  if named.is_keyed then
    execute format('create unique index on %s (%s)', named.rows_table, key_columns);
  end if;
  execute format('create table %s (%s, _task_id bigint not null, _lease uuid not null, _part int not null, _row bigint not null)',
    named.stage_table, columns);
  execute format('create index on %s (_task_id, _lease, _part)', named.stage_table);
end $$;

-- Drop the tables of a generation. Waits briefly for locks, because readers would queue up behind it.
create function holdfast.drop_generation_tables(which int) returns void
  language plpgsql security definer set lock_timeout = '2s' set search_path = pg_catalog, pg_temp as $$
declare
  named record;
begin
  select * into strict named from holdfast.generation_names(which);
  execute format('drop table if exists %s, %s', named.stage_table, named.rows_table);
end $$;

-- Move the staged rows of one part into the generation's table; returns how many were staged, removed and added. An
-- append skips keys that exist already. A replace fails on a key that belongs to another partition.
create function holdfast.move_staged(
  which int, task bigint, lease uuid, part int, target text, mode text,
  out staged bigint, out removed bigint, out added bigint
)
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  named record;
begin
  select * into strict named from holdfast.generation_names(which);
  removed := 0;
  if mode = 'replace' then
    execute format('delete from %s where _partition = $1', named.rows_table) using target;
    get diagnostics removed = row_count;
  end if;
  execute format(
    'with moved as (delete from %1$s where _task_id = $1 and _lease = $2 and _part = $3 returning *),
     added as (
       insert into %2$s (%3$s, _partition, _task_id) select %3$s, $4, $1 from moved order by _row %4$s returning 1
     )
     select (select count(*) from moved), (select count(*) from added)',
    named.stage_table, named.rows_table, named.column_list,
    case when mode = 'append' and named.is_keyed then 'on conflict do nothing' else '' end
  ) into staged, added using task, lease, part, target;
end $$;

-- Remove what earlier generations of a task, or the tasks in whose place it stands, appended to a partition of a
-- dataset without a key: the completion of the task adds it again.
create function holdfast.remove_appended_rows(which int, target text, task bigint) returns bigint
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  named record;
  removed bigint;
begin
  select * into strict named from holdfast.generation_names(which);
  execute format(
    'delete from %s o
     using (select $2 as first_id, $2 as last_id union all select b.first_id, b.last_id from holdfast.predecessor_tasks($2) b) t
     where o._partition = $1 and o._task_id between t.first_id and t.last_id', named.rows_table) using target, task;
  get diagnostics removed = row_count;
  return removed;
end $$;

-- Remove from a generation what a span of tasks owes, in all partitions. Commits say which partitions these are;
-- where retention deleted the commits, the whole table is scanned.
create function holdfast.remove_owed_rows(which int, first_id bigint, last_id bigint) returns bigint
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

-- Delete the staged rows of one part.
create function holdfast.drop_staged(which int, task bigint, lease uuid, part int) returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  named record;
begin
  select * into strict named from holdfast.generation_names(which);
  if to_regclass(named.stage_table) is not null then
    execute format('delete from %s where _task_id = $1 and _lease = $2 and _part = $3', named.stage_table)
    using task, lease, part;
  end if;
end $$;

-- Count the rows of a generation, or of one partition of it. Null if its table was dropped.
create function holdfast.count_rows(which int, target text) returns bigint
  language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  named record;
  counted bigint;
begin
  select * into strict named from holdfast.generation_names(which);
  if to_regclass(named.rows_table) is null then
    return null;
  end if;
  execute format('select count(*) from %s where $1 is null or _partition = $1', named.rows_table)
  into counted using target;
  return counted;
end $$;

-- Whether the reader's snapshot is as recent as the cut-over that made its view. A transaction with an older snapshot
-- would see half of the new generation, so it gets a serialization failure instead and has to begin again. Runs with
-- its owner's rights: readers need no right but the one on the view.
create function holdfast.is_snapshot_current(which int, shown int) returns boolean
  language plpgsql stable security definer parallel safe set search_path = pg_catalog, pg_temp as $$
begin
  if exists (select from holdfast.dataset d where d.dataset_id = which and d.current_version = shown) then
    return true;
  end if;
  raise exception 'the dataset was cut over to version % after this transaction took its snapshot', shown
    using errcode = 'serialization_failure', hint = 'Run the transaction again.';
end $$;

-- Let the view of a dataset show its current version. Waits briefly for locks, because readers would queue up behind
-- it. Grants on the view survive a change of its columns; a view of the user's own on top of it forbids such a
-- change.
create function holdfast.refresh_dataset_view(which int, is_first boolean) returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
declare
  d holdfast.dataset;
  named record;
  shown text;
  query text;
  granted aclitem[];
  one record;
begin
  select * into strict d from holdfast.dataset where dataset_id = which and holdfast.may_act_for(tenant_id);
  select n.* into named
  from holdfast.dataset_generation g, holdfast.generation_names(g.generation_id) n
  where g.dataset_id = which and g.version = d.current_version;
  shown := format('%I.%I', d.place, d.name);
  query := format('select %s from %s where (select holdfast.is_snapshot_current(%s, %s))',
    named.column_list, named.rows_table, which, d.current_version);
  if is_first then
    execute format('create view %s as %s', shown, query);
    return;
  end if;
  begin
    execute format('create or replace view %s as %s', shown, query);
    return;
  exception when invalid_table_definition then
    null;
  end;
  select c.relacl into granted from pg_class c where c.oid = shown::regclass;
  execute format('drop view %s', shown);
  execute format('create view %s as %s', shown, query);
  for one in
    select a.privilege_type, a.is_grantable, case a.grantee when 0 then 'public' else a.grantee::regrole::text end as grantee
    from aclexplode(granted) a
  loop
    execute format('grant %s on %s to %s%s', one.privilege_type, shown, one.grantee,
      case when one.is_grantable then ' with grant option' else '' end);
  end loop;
end $$;
