-- Nodes without a task: events that reach sub-flows, and failures that have a dead letter.

-- Did any run of a family take an event: the topmost one, and whatever it started?
create function holdfast.is_taken(signal bigint, run bigint) returns boolean
  language sql stable
  return exists (
    with recursive above as (
      select r.run_id, r.parent_run_id
      from holdfast.run r
      where r.run_id = run
      union all
      select r.run_id, r.parent_run_id
      from above
      join holdfast.run r on r.run_id = above.parent_run_id
    ),
    family as (
      select above.run_id
      from above
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
