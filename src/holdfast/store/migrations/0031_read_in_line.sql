-- What lists ask of each row, as functions that PostgreSQL reads as a part of the statement. A function that answers one
-- value and looks into tables is started anew for every row: that took most of the time of a page.

-- How a run is shown, of the columns that say so.
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
      where t.task_id > run and t.task_id <= run + its_nodes and (t.state = 'r' or t.is_retrying)
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
      where a.task_id > run and a.task_id <= run + its_nodes and a.state = 'c'
        and a.generation = coalesce(n.generation, 1)
    ) then 'running'
    else 'queued'
  end
$$;

create or replace function holdfast.run_state(r holdfast.run) returns text
  language sql stable as $$
  select s.state
  from holdfast.state_of_run(r.run_id, r.nodes, r.state, r.canceled_at, r.paused_at, r.failed) s
$$;

-- What a task did outside that can be undone and was not yet.
create function holdfast.undoable(dead_task_id bigint) returns table (key text) language sql stable as $$
  select e.key
  from holdfast.effect e
  where e.task_id = dead_task_id and e.compensation is not null and e.compensated_by is null and e.state <> 'r'
$$;

create or replace function holdfast.recovery_options(dead_task_id bigint) returns text[]
  language sql stable as $$
  select case
    when exists (select from holdfast.undoable(dead_task_id)) then '{retry,ignore,abandon,compensate}'::text[]
    else '{retry,ignore,abandon}'::text[]
  end
$$;
