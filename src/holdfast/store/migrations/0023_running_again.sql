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
