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
