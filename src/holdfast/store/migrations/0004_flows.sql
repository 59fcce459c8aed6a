-- Flows: versioned definitions, runs of them, and what the nodes of a run wait for.
--
-- A run takes a span of ids at its start: `run_id` is the first, and node n is the task `run_id + 1 + n` for all its
-- generations. So a node needs no row to be found, and gets one in `node` only where something must be remembered: how
-- many upstreams are over, that it was skipped or reset, or what stands in for its task (items, another run, a wait).

create table holdfast.flow (
  flow_id int generated always as identity primary key,
  tenant_id int not null references holdfast.tenant,
  name text not null check (name ~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$'),
  version int not null check (version > 0),
  digest text not null,
  definition jsonb not null,
  nodes int not null check (nodes > 0),
  -- The edges between nodes, by number: what `verify` recounts with.
  upstreams int[] not null,
  downstreams int[] not null,
  created_at timestamptz not null default holdfast.instant(),
  unique (tenant_id, name, version),
  unique (tenant_id, flow_id)
);

-- A definition together with the lane, policy and priority of each node on the day a run started. Immutable, interned:
-- a run names one, and never sees a later edit of the flow or of its actions. Nodes that run no task have lane 0.
create table holdfast.snapshot (
  snapshot_id int generated always as identity primary key,
  tenant_id int not null,
  flow_id int not null,
  digest bytea not null,
  lane_ids int[] not null,
  policy_ids int[] not null,
  priorities smallint[] not null,
  -- For nodes that run another flow: the snapshot they run, else 0.
  child_ids int[] not null,
  unique (flow_id, digest),
  unique (tenant_id, snapshot_id),
  foreign key (tenant_id, flow_id) references holdfast.flow (tenant_id, flow_id)
);

-- One run. Its row is the monitor of its graph: whoever counts, releases, skips, pauses, cancels or resets nodes of the
-- run holds this row's lock. o open, c completed, f failed, x canceled.
create table holdfast.run (
  run_id bigint primary key,
  created_at timestamptz not null default holdfast.instant(),
  ended_at timestamptz,
  paused_at timestamptz,
  canceled_at timestamptz,
  parent_run_id bigint,
  original_run_id bigint,
  began xid8 not null default holdfast.event_place(pg_current_xact_id()),
  tenant_id int not null,
  snapshot_id int not null,
  parent_node int,
  nodes int not null check (nodes > 0),
  -- Nodes that are not over; of these, nodes released and not over; nodes that failed for good.
  pending int not null,
  active int not null,
  failed int not null default 0,
  max_active int check (max_active > 0),
  priority smallint,
  generation smallint not null default 1,
  state "char" not null default 'o' check (state in ('o', 'c', 'f', 'x')),
  is_awaited boolean not null default false,
  is_answered boolean not null default false,
  paused_by text,
  paused_reason text,
  canceled_by text,
  cancel_reason text,
  key text,
  tags text[],
  input bytea not null,
  foreign key (tenant_id, snapshot_id) references holdfast.snapshot (tenant_id, snapshot_id),
  constraint run_counts check (active between 0 and pending and pending <= nodes and failed between 0 and nodes),
  constraint run_over check ((state = 'o') = (ended_at is null) and (state = 'o') = (pending > 0)),
  constraint run_verdict check (state not in ('c', 'f') or (state = 'f') = (failed > 0)),
  constraint run_canceled check (state <> 'x' or canceled_at is not null),
  constraint run_parent check ((parent_run_id is null) = (parent_node is null))
) with (fillfactor = 70);
create index run_recent on holdfast.run (tenant_id, run_id desc);
create index run_open on holdfast.run (run_id) where state = 'o';
create index run_failed on holdfast.run (run_id) where state in ('f', 'x');
create index run_unanswered on holdfast.run (run_id) where parent_run_id is not null and state <> 'o' and not is_answered;
create index run_children on holdfast.run (parent_run_id) where parent_run_id is not null;

-- What is remembered of a node. b blocked, h held back (ready, but its run is paused or full), r released as a task,
-- m released as items, s released as a run, w waits for an event; c completed, f failed, x canceled (of m, s and w:
-- a task's own end is its attempt or its `ended` row), k skipped, u upstream failed.
create table holdfast.node (
  run_id bigint not null,
  deadline timestamptz,
  items_first bigint,
  child_run_id bigint,
  signal_id bigint,
  items int,
  items_next int,
  items_pending int,
  items_failed int,
  items_canceled int,
  node_no int not null,
  pending int not null default 0,
  succeeded int not null default 0,
  skipped int not null default 0,
  failed int not null default 0,
  -- How many attempts the task had before this generation.
  attempt int not null default 0,
  tenant_id int not null,
  generation smallint not null default 1,
  state "char" not null check (state in ('b', 'h', 'r', 'm', 's', 'w', 'c', 'f', 'x', 'k', 'u')),
  wait_key text,
  output bytea,
  primary key (run_id, node_no),
  constraint node_counts check (least(pending, succeeded, skipped, failed) >= 0),
  constraint node_items check ((items is not null) = (items_first is not null) and (state <> 'm' or items is not null)
    and items_pending between 0 and items and items_failed + items_canceled + items_pending <= items
    and items_next between 0 and items),
  constraint node_child check (state <> 's' or child_run_id is not null),
  constraint node_waiting check (state <> 'w' or wait_key is not null)
) partition by range (run_id);
create index node_items on holdfast.node (items_first) where items_first is not null;
create index node_waits on holdfast.node (tenant_id, wait_key) where state = 'w';
create index node_deadline on holdfast.node (deadline) where state = 'w';

-- Events from outside that nodes wait for. One without a run is for every run that was there when it came.
create table holdfast.signal (
  signal_id bigint generated always as identity primary key,
  run_id bigint,
  at timestamptz not null default holdfast.instant(),
  tenant_id int not null references holdfast.tenant,
  wait_key text not null check (wait_key <> ''),
  actor text not null default '',
  payload bytea not null
);
create index signal_key on holdfast.signal (tenant_id, wait_key, signal_id);

-- A task that is a node (or one item of a node) says so. Ids of items lie outside their run's span.
alter table holdfast.live add column run_id bigint, add column node_no int,
  add constraint live_node check ((run_id is null) = (node_no is null));
alter table holdfast.ended add column run_id bigint, add column node_no int,
  add constraint ended_node check ((run_id is null) = (node_no is null));
-- The input of a node is what its bindings give: it is not stored a second time.
alter table holdfast.ended alter column input drop not null;
create index ended_node on holdfast.ended (run_id, node_no) where run_id is not null;

-- Ids of spans lie in the upper half of each block, so that a span never meets an id handed out one by one.
create sequence holdfast.span as bigint minvalue 0 start 0;

create function holdfast.take_span(length bigint) returns bigint language plpgsql as $$
declare
  first bigint;
begin
  -- A sequence steps by one. The lock makes two steps of it one, for a moment and not until the transaction ends: it is
  -- taken inside the block, and the block's rollback, which sequences ignore, gives it back. A cancel in the middle ends
  -- the whole transaction and the lock with it.
  begin
    perform pg_advisory_xact_lock(1752132967, 0);
    first := nextval('holdfast.span');
    perform setval('holdfast.span', first + length - 1);
    raise exception 'The span is taken.' using errcode = 'HF001';
  exception when sqlstate 'HF001' then null;
  end;
  return first;
end $$;

-- From here on a block has room for a hundred thousand million ids, half of them for spans.
create or replace function holdfast.begin_block() returns int language plpgsql as $$
declare
  fresh int := coalesce((select max(b.block) + 1 from holdfast.block b), 0);
  first bigint := coalesce((select max(b.last_id) + 1 from holdfast.block b), 0);
  size constant bigint := 100000000000;
  part text;
begin
  -- Made apart and attached: that waits for no reader or writer, while `partition of` would wait for all of them.
  foreach part in array array['body', 'attempt', 'node'] loop
    execute format('create table holdfast.%s_%s (like holdfast.%s including all)', part, fresh, part);
    execute format('alter table holdfast.%s attach partition holdfast.%s_%s for values from (%s) to (%s)',
      part, part, fresh, first, first + size);
  end loop;
  insert into holdfast.block (block, first_id, last_id) values (fresh, first, first + size - 1);
  return fresh;
end $$;

create or replace function holdfast.drop_block(which int) returns void language plpgsql as $$
begin
  delete from holdfast.idempotency i using holdfast.block b
  where b.block = which and i.task_id between b.first_id and b.last_id;
  delete from holdfast.note n using holdfast.block b
  where b.block = which and n.task_id between b.first_id and b.last_id;
  -- Nothing of this block is live, failed or canceled any more, so these are the stumbles of tasks that completed.
  delete from holdfast.failure f using holdfast.block b
  where b.block = which and f.task_id between b.first_id and b.last_id;
  delete from holdfast.run r using holdfast.block b
  where b.block = which and r.run_id between b.first_id and b.last_id;
  execute format('drop table if exists holdfast.body_%s, holdfast.attempt_%s, holdfast.node_%s', which, which, which);
  delete from holdfast.block b where b.block = which;
end $$;

-- Blocks made before flows get their nodes, and spans their place in the newest of them.
do $$
declare
  known holdfast.block;
begin
  for known in select * from holdfast.block loop
    execute format('create table holdfast.node_%s partition of holdfast.node for values from (%s) to (%s)',
      known.block, known.first_id, known.last_id + 1);
  end loop;
  perform setval('holdfast.span', (select (max(b.first_id) + max(b.last_id)) / 2 + 1 from holdfast.block b), false);
end $$;

-- Where each node of each run stands: a live task, an end of its own, a completed attempt of its generation, or what is
-- remembered; a node of which nothing is known is blocked, or canceled with its run.
create view holdfast.standing with (security_invoker = true) as
select r.run_id, n.node_no, r.tenant_id,
  case
    when t.state = 'r' then 'running'
    when t.state = 'w' and t.is_retrying then 'retrying'
    when t.state is not null then 'queued'
    when e.state = 'f' or m.state = 'f' then 'failed'
    when e.state = 'x' or m.state = 'x' then 'canceled'
    when a.task_id is not null or m.state = 'c' then 'completed'
    when m.state = 'k' then 'skipped'
    when m.state = 'u' then 'upstream_failed'
    when m.state in ('m', 's', 'w') then 'running'
    when r.canceled_at is not null then 'canceled'
    else 'blocked'
  end as state,
  coalesce(t.attempt, e.attempt, a.attempt, m.attempt, 0) as attempt,
  coalesce(t.generation, e.generation, a.generation, m.generation, 1) as generation,
  m.state::text as letter, m.pending, m.succeeded, m.skipped, m.failed, m.items, m.items_pending, m.items_failed,
  m.items_first, m.child_run_id, m.deadline, m.wait_key, coalesce(t.started_at, a.started_at) as started_at,
  coalesce(a.ended_at, e.ended_at) as ended_at
from holdfast.run r
cross join lateral generate_series(0, r.nodes - 1) as n (node_no)
left join holdfast.node m on m.run_id = r.run_id and m.node_no = n.node_no
left join holdfast.live t on t.task_id = r.run_id + 1 + n.node_no
left join holdfast.ended e on e.task_id = r.run_id + 1 + n.node_no
left join holdfast.attempt a on a.task_id = r.run_id + 1 + n.node_no and a.state = 'c'
  and a.generation = coalesce(m.generation, 1);
