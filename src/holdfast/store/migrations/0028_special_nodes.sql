-- Nodes without a task: events that reach sub-flows, and failures that have a dead letter.

-- A run and those that started it, up to the topmost.
create function holdfast.runs_above(run bigint) returns table (run_id bigint, created_at timestamptz)
  language sql stable as $$
  with recursive above as (
    select r.run_id, r.parent_run_id, r.created_at
    from holdfast.run r
    where r.run_id = run
    union all
    select r.run_id, r.parent_run_id, r.created_at
    from above
    join holdfast.run r on r.run_id = above.parent_run_id
  )
  select above.run_id, above.created_at
  from above
$$;

-- Did any run of a family take an event: the topmost one, and whatever it started?
create function holdfast.is_taken(signal bigint, run bigint) returns boolean
  language sql stable
  return exists (
    with recursive family as (
      select a.run_id
      from holdfast.runs_above(run) a
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

-- Does a task rest failed, with its own end or, of a node that failed without a task, with the node's?
create function holdfast.rests_failed(dead_task_id bigint, dead_run_id bigint, dead_node_no int) returns boolean
  language sql stable
  return exists (select from holdfast.ended e where e.task_id = dead_task_id and e.state = 'f')
    or exists (
      select
      from holdfast.node n
      where n.run_id = dead_run_id and n.node_no = dead_node_no and n.state = 'f' and n.items is null
        and dead_task_id = n.run_id + 1 + n.node_no
    );

-- As before, and of nodes that failed without a task.
create or replace function holdfast.can_go_again(dead_task_id bigint) returns boolean
  language sql stable
  return exists (
    select
    from holdfast.ended e
    left join holdfast.run r on r.run_id = e.run_id
    where e.task_id = dead_task_id and e.state = 'f'
      and (e.run_id is null or (r.run_id is not null and r.canceled_at is null))
  ) or exists (
    select
    from holdfast.place(dead_task_id) w
    join holdfast.run r on r.run_id = w.run_id
    where w.item_no is null and r.canceled_at is null and holdfast.rests_failed(dead_task_id, w.run_id, w.node_no)
  );
