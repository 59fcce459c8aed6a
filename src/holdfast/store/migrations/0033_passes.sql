-- Passes over runs look at what they have to do, not at everything that is open. All of these indexes are of conditions that
-- few rows meet, and of columns that no node or run changes as it goes along: what is updated in place still is.

-- Nodes that stand somewhere: held back, released as items, as a run or as a wait. A run that lets nodes go as others end
-- finds the next one here, and not past all those that it let go before; a look at waits goes along them.
create index node_standing on holdfast.node (state, run_id, node_no) where state in ('h', 'm', 's', 'w');

-- Open runs that have something to tell: to their tasks and to what they started.
create index run_stopping on holdfast.run (run_id) where state = 'o' and (canceled_at is not null or is_replaced);
create index run_paused on holdfast.run (run_id) where state = 'o' and paused_at is not null;

-- Open runs that were run again.
create index run_again on holdfast.run (run_id) where state = 'o' and generation > 1;

-- What a run started, and of these those that go on: a run may have started a hundred thousand that are over.
drop index holdfast.run_children;
create index run_children on holdfast.run (parent_run_id, state, canceled_at, paused_at) where parent_run_id is not null;

-- As before; each step finds one run by its key, however many the planner believes there are.
create or replace function holdfast.runs_above(run bigint) returns table (run_id bigint, created_at timestamptz)
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

-- How many nodes of each of its runs a schedule lets be active at once. Null: as many as there are. A scheduler of an older
-- version starts its runs without this limit.
alter table holdfast.schedule add column max_active int check (max_active > 0);
