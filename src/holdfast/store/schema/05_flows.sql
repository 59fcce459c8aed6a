-- Flows: versioned definitions, runs of them, and what the nodes of a run wait for.
--
-- A run takes a span of consecutive ids at its start: run_id is the first, and node n is the task run_id + 1 + n in
-- all its generations. So a node is found without a row of its own. It gets a row in `node` only where something must
-- be remembered: how many upstreams are over, that it was skipped or reset, or what stands in for its task (items, a
-- child run, a wait).

-- A version of a flow. Immutable.
create table holdfast.flow (
  flow_id int generated always as identity primary key,
  tenant_id int not null references holdfast.tenant,
  name text not null check (name ~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$'),
  version int not null check (version > 0),
  digest text not null,
  definition jsonb not null,
  nodes int not null check (nodes > 0),
  -- The edges between nodes, by number. `holdfast verify` recounts the nodes of a run with them.
  upstreams int[] not null,
  downstreams int[] not null,
  created_at timestamptz not null default holdfast.instant(),
  unique (tenant_id, name, version),
  unique (tenant_id, flow_id)
);

-- A flow version together with the lane, policy and priority of each node at the time a run started. Immutable and
-- interned by digest: a run names one and never sees a later change of the flow or of its actions. A node that runs
-- no task has lane 0.
create table holdfast.snapshot (
  snapshot_id int generated always as identity primary key,
  tenant_id int not null,
  flow_id int not null,
  digest bytea not null,
  lane_ids int[] not null,
  policy_ids int[] not null,
  priorities smallint[] not null,
  -- The snapshot that a node runs as a child flow; 0 for other nodes.
  child_ids int[] not null,
  unique (flow_id, digest),
  unique (tenant_id, snapshot_id),
  foreign key (tenant_id, flow_id) references holdfast.flow (tenant_id, flow_id)
);

-- A run. States: o open, c completed, f failed, x canceled. The row is the lock of its graph: a transaction that
-- counts, releases, skips, pauses, cancels or resets nodes of the run holds the lock of this row.
create table holdfast.run (
  run_id bigint primary key,
  created_at timestamptz not null default holdfast.instant(),
  ended_at timestamptz,
  paused_at timestamptz,
  canceled_at timestamptz,
  parent_run_id bigint,
  original_run_id bigint,
  -- The event position at which it began: a reader of its events need not look further back.
  began xid8 not null default holdfast.event_position(pg_current_xact_id()),
  tenant_id int not null,
  snapshot_id int not null,
  parent_node int,
  nodes int not null check (nodes > 0),
  -- Nodes that are not over; of these, nodes that were released; and nodes that failed for good.
  pending int not null,
  active int not null,
  failed int not null default 0,
  max_active int check (max_active > 0),
  priority smallint,
  generation smallint not null default 1,
  state "char" not null default 'o' check (state in ('o', 'c', 'f', 'x')),
  is_awaited boolean not null default false,
  -- The parent's node was told how this run ended.
  is_answered boolean not null default false,
  paused_by text,
  paused_reason text,
  canceled_by text,
  cancel_reason text,
  key text,
  tags text[],
  input bytea not null,
  -- Paused together with its parent run and resumed with it, and not by an operator.
  is_held boolean not null default false,
  -- Of a child run: the parent's node has another child run now.
  is_replaced boolean not null default false,
  -- Of a child run: the generation of the parent's node that goes on with this run, and whether what failed in it has
  -- yet to be run again for that generation.
  kept_for smallint,
  is_wanted boolean not null default false,
  foreign key (tenant_id, snapshot_id) references holdfast.snapshot (tenant_id, snapshot_id),
  constraint run_counts check (active between 0 and pending and pending <= nodes and failed between 0 and nodes),
  constraint run_over check ((state = 'o') = (ended_at is null) and (state = 'o') = (pending > 0)),
  constraint run_verdict check (state not in ('c', 'f') or (state = 'f') = (failed > 0)),
  constraint run_canceled check (state <> 'x' or canceled_at is not null),
  constraint run_parent check ((parent_run_id is null) = (parent_node is null))
) with (fillfactor = 70);
-- Lists of a tenant: all runs, open ones, failed and canceled ones. `run_id > 0` is true of every row; it keeps
-- statements that take open runs by key from using the list's index, which PostgreSQL before 18 did on a table it
-- took for empty.
create index run_recent on holdfast.run (tenant_id, run_id);
create index run_open on holdfast.run (tenant_id, run_id) where state = 'o' and run_id > 0;
create index run_failed on holdfast.run (tenant_id, run_id) where state in ('f', 'x');
-- What the maintenance loops look for. Few rows meet these conditions, and no run changes these columns as it progresses,
-- so its updates stay in place.
create index run_unanswered on holdfast.run (run_id) where parent_run_id is not null and state <> 'o' and not is_answered;
create index run_wanted on holdfast.run (run_id) where is_wanted;
create index run_replaced on holdfast.run (run_id) where is_replaced;
create index run_stopping on holdfast.run (run_id) where state = 'o' and (canceled_at is not null or is_replaced);
create index run_paused on holdfast.run (run_id) where state = 'o' and paused_at is not null;
create index run_again on holdfast.run (run_id) where state = 'o' and generation > 1;
-- The children of a run, and of these the ones that still have to be canceled or paused: a run may have started a
-- hundred thousand that are over.
create index run_children on holdfast.run (parent_run_id, state, canceled_at, paused_at) where parent_run_id is not null;

-- What is remembered of a node. States: b blocked, h held back (ready, but its run is paused or full), r released as
-- a task, m released as items, s released as a child run, w waits for a signal; c completed, f failed, x canceled
-- (only of m, s and w: the end of a task is its attempt or its `ended` row), k skipped, u upstream failed. One
-- partition per block.
create table holdfast.node (
  run_id bigint not null,
  deadline timestamptz,
  -- Items: the span items_first .. items_first + items - 1 of task ids, and the next one to release.
  items_first bigint,
  child_run_id bigint,
  signal_id bigint,
  items int,
  items_next int,
  items_pending int,
  items_failed int,
  items_canceled int,
  node_no int not null,
  -- Upstreams that are not over, and how the others ended.
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
  -- Of items that run again: the position from which the next one is looked for, because completed items are passed
  -- over. items_next stands at the end then.
  items_after int check (items_after between 0 and items),
  primary key (run_id, node_no),
  constraint node_counts check (least(pending, succeeded, skipped, failed) >= 0),
  constraint node_items check ((items is not null) = (items_first is not null) and (state <> 'm' or items is not null)
    and items_pending between 0 and items and items_failed + items_canceled + items_pending <= items
    and items_next between 0 and items),
  constraint node_child check (state <> 's' or child_run_id is not null),
  constraint node_waiting check (state <> 'w' or wait_key is not null)
) partition by range (run_id);
create index node_items on holdfast.node (items_first) where items_first is not null;
-- Nodes that a signal wakes, and waits that time out.
create index node_waits on holdfast.node (tenant_id, wait_key) where state = 'w';
create index node_deadline on holdfast.node (deadline) where state = 'w';
-- The next node of a run to release, and nodes that stand for something else. A run finds its next node here without
-- passing all those it released before.
create index node_in_progress on holdfast.node (state, run_id, node_no) where state in ('h', 'm', 's', 'w');
-- Lists of tasks: nodes whose state is in no other table. `node_no >= 0` is true of every row, see run_open.
create index node_taskless on holdfast.node (tenant_id, run_id, node_no)
  where state in ('c', 'f', 'x', 'k', 'u', 'm', 's', 'w') and node_no >= 0;

-- Signals from outside that nodes wait for. A signal without a run is for every run that existed when it came.
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

-- Signals that nodes took before they were reset: no run takes the same signal twice. Goes with its run.
create table holdfast.past_signal (
  run_id bigint not null references holdfast.run on delete cascade,
  signal_id bigint not null,
  tenant_id int not null references holdfast.tenant,
  primary key (run_id, signal_id)
);

-- Spans of items that their node no longer uses: a re-drive of an upstream gave the node others, but the attempts of
-- the old items stay and keep their place. Goes with its run.
create table holdfast.past_items (
  items_first bigint primary key,
  run_id bigint not null references holdfast.run on delete cascade,
  tenant_id int not null references holdfast.tenant,
  items int not null check (items > 0),
  node_no int not null,
  generation smallint not null,
  -- The generation of a failed node that goes on with these items: those that did not complete run again.
  kept_for smallint
);
create index past_items_run on holdfast.past_items (run_id);

-- Every span of items, present and past. Both sides are read by an index in the order of items_first.
create view holdfast.item_span with (security_invoker = true) as
select n.items_first, n.run_id, n.tenant_id, n.items, n.node_no, n.generation, false as is_past
from holdfast.node n
where n.items_first is not null
union all
select p.items_first, p.run_id, p.tenant_id, p.items, p.node_no, p.generation, true
from holdfast.past_items p;

-- Ids of spans come from the upper half of each block, so a span never meets an id that was drawn one by one.
create sequence holdfast.span as bigint minvalue 0 start 0;

-- Take a span of consecutive ids; returns the first. Runs with its owner's rights, because only this function may set
-- the sequence.
create function holdfast.take_span(length bigint) returns bigint
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  first bigint;
begin
  -- nextval() takes one id. The lock makes nextval() and setval() one step. It is held for a moment and not until the
  -- transaction ends: it is taken inside a subtransaction whose rollback releases it, and sequences ignore rollbacks. A
  -- cancellation in between ends the whole transaction, and the lock with it.
  begin
    perform pg_advisory_xact_lock(1752132967, 0);
    first := nextval('holdfast.span');
    perform setval('holdfast.span', first + length - 1);
    raise exception 'The span is taken.' using errcode = 'HF001';
  exception when sqlstate 'HF001' then null;
  end;
  return first;
end $$;

-- The place of a task: its run, the number of its node and, for an item, its number among the items. Found by the id
-- alone: a node lies in the span of the newest run that began before it, an item in the newest span of items. No row
-- for a task outside a flow.
create function holdfast.locate_task(task bigint) returns table (run_id bigint, node_no int, item_no int)
  language sql stable as $$
  select coalesce(r.run_id, n.run_id), coalesce((task - r.run_id - 1)::int, n.node_no),
    case when r.run_id is null then (task - n.items_first)::int end
  from (select) as one
  left join lateral (
    select near.run_id
    from (
      select x.run_id, x.nodes
      from holdfast.run x
      where x.run_id < task
      order by x.run_id desc
      limit 1
    ) near
    where task <= near.run_id + near.nodes
  ) r on true
  left join lateral (
    select near.run_id, near.node_no, near.items_first
    from (
      select x.run_id, x.node_no, x.items_first, x.items
      from holdfast.item_span x
      where x.items_first <= task and r.run_id is null
      order by x.items_first desc
      limit 1
    ) near
    where task < near.items_first + near.items
  ) n on true
  where r.run_id is not null or n.run_id is not null
$$;

-- The state of each node of a run: that of its live task, its end, its completed attempt of the present generation,
-- or what `node` remembers. A node of which nothing is known is blocked, or canceled with its run. `is_taskless`: the
-- node has no task. `limit 1` forces a probe by key of each table for each node: a run is small compared to these
-- tables.
create function holdfast.nodes_of(run bigint) returns table (
  node_no int, task_id bigint, state text, attempt int, generation smallint, is_taskless boolean, state_code text, pending int,
  succeeded int, skipped int, failed int, items int, items_pending int, items_failed int, items_canceled int,
  items_first bigint, child_run_id bigint, deadline timestamptz, wait_key text, started_at timestamptz,
  ended_at timestamptz, lane_id int, policy_id int
)
  language sql stable as $$
  select n.node_no, r.run_id + 1 + n.node_no,
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
    end,
    coalesce(t.attempt, e.attempt, a.attempt, m.attempt, 0),
    coalesce(t.generation, e.generation, a.generation, m.generation, 1::smallint),
    t.task_id is null and e.task_id is null and a.task_id is null,
    m.state::text, m.pending, m.succeeded, m.skipped, m.failed, m.items, m.items_pending, m.items_failed,
    m.items_canceled, m.items_first, m.child_run_id, m.deadline, m.wait_key, coalesce(t.started_at, a.started_at), coalesce(a.ended_at, e.ended_at),
    s.lane_ids[n.node_no + 1], s.policy_ids[n.node_no + 1]
  from holdfast.run r
  join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
  cross join lateral generate_series(0, r.nodes - 1) as n (node_no)
  left join lateral (select x.* from holdfast.node x where x.run_id = r.run_id and x.node_no = n.node_no limit 1) m on true
  left join lateral (select x.* from holdfast.live x where x.task_id = r.run_id + 1 + n.node_no limit 1) t on true
  left join lateral (select x.* from holdfast.ended x where x.task_id = r.run_id + 1 + n.node_no limit 1) e on true
  left join lateral (
    select x.task_id, x.attempt, x.generation, x.started_at, x.ended_at
    from holdfast.attempt x
    where x.task_id = r.run_id + 1 + n.node_no and x.state = 'c' and x.generation = coalesce(m.generation, 1)
    limit 1
  ) a on true
  where r.run_id = run
$$;

-- The same for all runs.
create view holdfast.node_states with (security_invoker = true) as
select r.run_id, n.node_no, r.tenant_id, n.state, n.attempt, n.generation::int as generation, n.state_code, n.pending,
  n.succeeded, n.skipped, n.failed, n.items, n.items_pending, n.items_failed, n.items_first, n.child_run_id, n.deadline,
  n.wait_key, n.started_at, n.ended_at
from holdfast.run r
cross join lateral holdfast.nodes_of(r.run_id) n;

-- The displayed state of a run, from the columns that determine it; the rule is that of core/flows/run_state.py. An open run
-- has started once one of its nodes runs, waits for a retry or completed. A function that returns a table is inlined
-- into a list's statement; one that returns a value would be started for every row. `offset 0` makes the last id a
-- plain value: behind row-level security an index is not entered by a sum.
create function holdfast.state_of_run(
  run bigint, its_nodes int, stored "char", canceled timestamptz, paused timestamptz, failures int
) returns table (state text) language sql stable as $$
  select case
    when stored = 'c' then 'completed'
    when stored = 'f' then 'failed'
    when stored = 'x' then 'canceled'
    when canceled is not null then 'running'
    when paused is not null then 'paused'
    when failures > 0 then 'blocked'
    when exists (
      select
      from holdfast.live t
      where t.task_id > run and t.task_id <= u.last_id and (t.state = 'r' or t.is_retrying)
    ) then 'running'
    when exists (
      select
      from holdfast.node n
      where n.run_id = run and n.state in ('m', 's', 'w', 'c')
    ) then 'running'
    when exists (
      select
      from holdfast.attempt a
      left join holdfast.node n on n.run_id = run and n.node_no = a.task_id - run - 1
      where a.task_id > run and a.task_id <= u.last_id and a.state = 'c'
        and a.generation = coalesce(n.generation, 1)
    ) then 'running'
    else 'queued'
  end
  from (select run + its_nodes as last_id offset 0) u
$$;
create function holdfast.run_state(r holdfast.run) returns text
  language sql stable as $$
  select s.state
  from holdfast.state_of_run(r.run_id, r.nodes, r.state, r.canceled_at, r.paused_at, r.failed) s
$$;

-- The earliest time at which a node can have been ready, as far as is recorded: its run began, its upstreams ended,
-- its own last attempt ended. The moment of its release is not recorded.
create function holdfast.ready_since(run bigint, node int) returns timestamptz
  language sql stable as $$
  select greatest(
    r.created_at,
    (
      select max(coalesce(a.ended_at, e.ended_at))
      from unnest(f.upstreams, f.downstreams) as g (upstream, downstream)
      left join holdfast.attempt a on a.task_id = r.run_id + 1 + g.upstream and a.state = 'c'
      left join holdfast.ended e on e.task_id = r.run_id + 1 + g.upstream
      where g.downstream = node
    ),
    (select max(x.ended_at) from holdfast.failure x where x.task_id = r.run_id + 1 + node),
    (select max(x.ended_at) from holdfast.attempt x where x.task_id = r.run_id + 1 + node)
  )
  from holdfast.run r
  join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
  join holdfast.flow f on f.flow_id = s.flow_id
  where r.run_id = run
$$;

-- Whether others were started in place of a task: in place of its run, or of the items of its node.
create function holdfast.is_replaced(task bigint, run bigint) returns boolean language sql stable
return exists (select from holdfast.run r where r.run_id = run and r.is_replaced)
  or exists (
    select from holdfast.past_items p
    where p.run_id = run and task between p.items_first and p.items_first + p.items - 1
  );

-- The runs in whose place a run was started, at the same node all the way up.
create function holdfast.predecessor_runs(run bigint) returns setof bigint language sql stable as $$
  select c.run_id
  from holdfast.run me
  join holdfast.run c on c.parent_node = me.parent_node and c.is_replaced and c.run_id < me.run_id
    and c.parent_run_id = any(array(select me.parent_run_id union all select holdfast.predecessor_runs(me.parent_run_id)))
  where me.run_id = run and me.parent_run_id is not null
$$;

-- The tasks in whose place a task of a run stands, as spans: the same node of earlier runs, and the items that its
-- node no longer uses. `counterpart` is the one at the same position among them.
create function holdfast.predecessor_tasks(task bigint) returns table (first_id bigint, last_id bigint, counterpart bigint)
  language sql stable as $$
  with here as (
    select p.run_id, p.node_no, p.item_no
    from holdfast.locate_task(task) p
  ),
  runs as (
    select here.run_id
    from here
    union all
    select holdfast.predecessor_runs(here.run_id)
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

-- A run and its ancestors, up to the topmost. `limit 1` makes each step a probe by key, whatever the planner believes
-- about the number of runs.
create function holdfast.ancestor_runs(run bigint) returns table (run_id bigint, created_at timestamptz)
  language sql stable as $$
  with recursive above as (
    select r.run_id, r.parent_run_id, r.created_at
    from holdfast.run r
    where r.run_id = run
    union all
    select r.run_id, r.parent_run_id, r.created_at
    from above
    cross join lateral (
      select r.run_id, r.parent_run_id, r.created_at
      from holdfast.run r
      where r.run_id = above.parent_run_id
      limit 1
    ) r
  )
  select above.run_id, above.created_at
  from above
$$;

-- Whether any run of a family (the topmost run and all its descendants) took a signal.
create function holdfast.is_signal_taken(signal bigint, run bigint) returns boolean
  language sql stable
  return exists (
    with recursive family as (
      select a.run_id
      from holdfast.ancestor_runs(run) a
      union
      select r.run_id
      from family
      join holdfast.run r on r.parent_run_id = family.run_id
    )
    select
    from family
    where exists (select from holdfast.node n where n.run_id = family.run_id and n.signal_id = signal)
      or exists (select from holdfast.past_signal p where p.run_id = family.run_id and p.signal_id = signal)
  );

-- Whether a task failed and was not run again: by its own end or, for a node that failed without a task, by the
-- node's.
create function holdfast.is_failed_at_rest(dead_task_id bigint, dead_run_id bigint, dead_node_no int) returns boolean
  language sql stable
  return exists (select from holdfast.ended e where e.task_id = dead_task_id and e.state = 'f')
    or exists (
      select
      from holdfast.node n
      where n.run_id = dead_run_id and n.node_no = dead_node_no and n.state = 'f' and n.items is null
        and dead_task_id = n.run_id + 1 + n.node_no
    );
