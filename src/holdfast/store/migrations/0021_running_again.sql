-- Running again: what must be remembered of nodes that run no task of their own when they are reset or held.
-- Every column may be left alone: workers of before write none of them, and are read as before.

-- Events that nodes took before they were reset. No run takes one twice. Goes with its run.
create table holdfast.past_signal (
  run_id bigint not null references holdfast.run on delete cascade,
  signal_id bigint not null,
  tenant_id int not null references holdfast.tenant,
  primary key (run_id, signal_id)
);

-- Of items that run again: where the next one is looked for, because those that completed are passed over. Their
-- `items_next` stands at the end, so that a worker of before lets none of them go; a pass goes on where it stopped.
alter table holdfast.node add column items_after int check (items_after between 0 and items);

-- The generation of a node that failed and goes on with these items: those that did not complete run again.
alter table holdfast.past_items add column kept_for smallint;

-- Paused with the run that started it, and resumed with it; not by somebody.
alter table holdfast.run add column is_held boolean not null default false;

-- Runs that nodes of other runs started: `is_replaced` where the node has another one now, `kept_for` the generation of
-- the node that goes on with this one, `is_wanted` until what failed in it runs again for that node.
alter table holdfast.run
  add column is_replaced boolean not null default false,
  add column kept_for smallint,
  add column is_wanted boolean not null default false;
create index run_wanted on holdfast.run (run_id) where is_wanted;
create index run_replaced on holdfast.run (run_id) where is_replaced;

update holdfast.run c
set is_replaced = true
from holdfast.node n
where n.run_id = c.parent_run_id and n.node_no = c.parent_node and n.child_run_id <> c.run_id and c.state <> 'o';

-- Whether others were started in the place of a task: of its run, or of the items of its node.
create function holdfast.is_replaced(task bigint, run bigint) returns boolean language sql stable
return exists (select from holdfast.run r where r.run_id = run and r.is_replaced)
  or exists (
    select from holdfast.past_items p
    where p.run_id = run and task between p.items_first and p.items_first + p.items - 1
  );

-- The runs in whose place a run was started, at the same nodes all the way up.
create function holdfast.earlier_runs(run bigint) returns setof bigint language sql stable as $$
  select c.run_id
  from holdfast.run me
  join holdfast.run c on c.parent_node = me.parent_node and c.is_replaced and c.run_id < me.run_id
    and c.parent_run_id = any(array(select me.parent_run_id union all select holdfast.earlier_runs(me.parent_run_id)))
  where me.run_id = run and me.parent_run_id is not null
$$;

-- The tasks in whose place a task of a run is there, as spans: the node of earlier runs, the items that its node left.
-- `alike` is the one at the same place among them.
create function holdfast.stood_before(task bigint) returns table (first_id bigint, last_id bigint, alike bigint)
  language sql stable as $$
  with here as (
    select p.run_id, p.node_no, p.item_no
    from holdfast.place(task) p
  ),
  runs as (
    select here.run_id
    from here
    union all
    select holdfast.earlier_runs(here.run_id)
    from here
  )
  select r.run_id + 1 + here.node_no, r.run_id + 1 + here.node_no, r.run_id + 1 + here.node_no
  from here
  join runs r on r.run_id <> here.run_id
  where here.item_no is null
  union all
  select s.items_first, s.items_first + s.items - 1,
    case when here.item_no < s.items then s.items_first + here.item_no end
  from here
  cross join runs r
  join holdfast.item_span s on s.run_id = r.run_id and s.node_no = here.node_no
  where here.item_no is not null and (s.is_past or r.run_id <> here.run_id)
    and not task between s.items_first and s.items_first + s.items - 1
$$;

-- As before, and with the rows of a task those of the tasks in whose place it is there.
create or replace function holdfast.take_back(which int, target text, task bigint) returns bigint
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  named record;
  removed bigint;
begin
  select * into strict named from holdfast.generation_names(which);
  execute format(
    'delete from %s o
     using (select $2 as first_id, $2 as last_id union all select b.first_id, b.last_id from holdfast.stood_before($2) b) t
     where o._partition = $1 and o._task_id between t.first_id and t.last_id', named.rows_table) using target, task;
  get diagnostics removed = row_count;
  return removed;
end $$;
