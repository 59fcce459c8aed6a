-- Datasets: real tables that completed attempts write to. A dataset has generations, one table each; readers use a view
-- that shows the current one. An attempt stages its rows while it runs; the transaction that accepts its completion moves
-- them. What must be made at run time (tables, views) is made by the functions below from checked and quoted names.

create schema if not exists holdfast_data;

create table holdfast.dataset (
  dataset_id int generated always as identity primary key,
  tenant_id int not null references holdfast.tenant,
  name text not null check (name ~ '^[a-z][a-z0-9_]{0,39}$'),
  -- The schema that holds its view and tables.
  place text not null check (place ~ '^[a-z_][a-z0-9_]{0,62}$'),
  -- The version that the view shows. Readers check it under their own snapshot, see is_whole().
  current_version int,
  created_at timestamptz not null default holdfast.instant(),
  unique (tenant_id, name),
  unique (place, name),
  unique (tenant_id, dataset_id)
);

-- One generation: b being built, c current, o superseded and kept, r rolled back, d its tables are gone.
create table holdfast.dataset_generation (
  generation_id int generated always as identity primary key,
  tenant_id int not null,
  dataset_id int not null,
  version int not null check (version > 0),
  state "char" not null default 'b' constraint generation_state check (state in ('b', 'c', 'o', 'r', 'd')),
  -- Of a generation that was rolled back: whether its tables stay until somebody drops it.
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
  )
);
create unique index generation_current on holdfast.dataset_generation (dataset_id) where state = 'c';
create index generation_leaving on holdfast.dataset_generation (generation_id) where state = 'r';

-- Work that belongs to a generation: tasks and runs started to build it, and every task that wrote to it. What of these
-- is not over keeps the generation from being cut over, and is canceled when it is rolled back.
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
  primary key (task_id, lease_token, part)
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
  constraint commit_counts check (rows_added between 0 and rows_given and rows_removed >= 0)
);
create index commit_recent on holdfast.dataset_commit (generation_id, committed_at desc);
create index commit_age on holdfast.dataset_commit (committed_at);

-- The names of a generation's tables and columns, quoted.
create function holdfast.generation_names(
  which int, out rows_table text, out stage_table text, out column_list text, out is_keyed boolean
) language sql stable as $$
  select format('%I.%I', d.place, d.name || '_v' || g.version),
    format('%I.%I', d.place, d.name || '_v' || g.version || '_staged'),
    (select string_agg(quote_ident(c.name), ', ' order by c.nth) from unnest(g.columns) with ordinality as c (name, nth)),
    cardinality(g.key) > 0
  from holdfast.dataset_generation g
  join holdfast.dataset d on d.dataset_id = g.dataset_id
  where g.generation_id = which
$$;

create function holdfast.make_generation(which int) returns void language plpgsql as $$
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

create function holdfast.unmake_generation(which int) returns void language plpgsql set lock_timeout = '2s' as $$
declare
  named record;
begin
  select * into strict named from holdfast.generation_names(which);
  execute format('drop table if exists %s, %s', named.stage_table, named.rows_table);
end $$;

-- Move the staged rows of one part into the generation's table; answers how many were staged, taken out and put in. An
-- append skips keys that are there already. A replace fails on a key that belongs to another partition.
create function holdfast.move_staged(
  which int, task bigint, lease uuid, part int, target text, mode text,
  out staged bigint, out removed bigint, out added bigint
) language plpgsql as $$
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

-- Take out what earlier generations of the same task appended to a partition of a dataset without a key: the task's next
-- completion brings it again.
create function holdfast.take_back(which int, target text, task bigint) returns bigint language plpgsql as $$
declare
  named record;
  removed bigint;
begin
  select * into strict named from holdfast.generation_names(which);
  execute format('delete from %s where _partition = $1 and _task_id = $2', named.rows_table) using target, task;
  get diagnostics removed = row_count;
  return removed;
end $$;

create function holdfast.drop_staged(which int, task bigint, lease uuid, part int) returns void language plpgsql as $$
declare
  named record;
begin
  select * into strict named from holdfast.generation_names(which);
  if to_regclass(named.stage_table) is not null then
    execute format('delete from %s where _task_id = $1 and _lease = $2 and _part = $3', named.stage_table)
    using task, lease, part;
  end if;
end $$;

create function holdfast.count_rows(which int, target text) returns bigint language plpgsql stable as $$
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

-- Whether the reader's snapshot is as young as the cut-over that made its view. A transaction with an older snapshot would
-- see half of the new generation: it is told to begin again instead. Runs for the owner: readers need no other right.
create function holdfast.is_whole(which int, shown int) returns boolean
  language plpgsql stable security definer parallel safe set search_path = pg_catalog, pg_temp as $$
begin
  if exists (select from holdfast.dataset d where d.dataset_id = which and d.current_version = shown) then
    return true;
  end if;
  raise exception 'the dataset was cut over to version % after this transaction took its snapshot', shown
    using errcode = 'serialization_failure', hint = 'Run the transaction again.';
end $$;

-- Let the view of a dataset show its current version. Waits briefly: readers would queue up behind it. Rights on the view
-- outlive a change of its columns; a view of somebody else's on top of it forbids one.
create function holdfast.show_generation(which int, is_first boolean) returns void
  language plpgsql set lock_timeout = '2s' as $$
declare
  d holdfast.dataset;
  named record;
  shown text;
  query text;
  granted aclitem[];
  one record;
begin
  select * into strict d from holdfast.dataset where dataset_id = which;
  select n.* into named
  from holdfast.dataset_generation g, holdfast.generation_names(g.generation_id) n
  where g.dataset_id = which and g.version = d.current_version;
  shown := format('%I.%I', d.place, d.name);
  query := format('select %s from %s where (select holdfast.is_whole(%s, %s))',
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
