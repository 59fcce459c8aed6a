-- Running again: what must be remembered of nodes that run no task of their own when they are reset or held.
-- Every column may be left alone: workers of before write none of them, and are read as before.

-- The newest answer that was there when a node began to wait again: it and those before it answered another question.
alter table holdfast.node add column after_signal bigint;

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
