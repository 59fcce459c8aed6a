-- Items that a re-drive upstream replaced: their node has others now, but their attempts stay and keep their place.

-- Spans of items that their node left. Goes with its run.
create table holdfast.past_items (
  items_first bigint primary key,
  run_id bigint not null references holdfast.run on delete cascade,
  tenant_id int not null references holdfast.tenant,
  items int not null check (items > 0),
  node_no int not null,
  generation smallint not null
);
create index past_items_run on holdfast.past_items (run_id);

-- Every span of items, of now and before. Both sides are read by an index in the order of `items_first`.
create view holdfast.item_span with (security_invoker = true) as
select n.items_first, n.run_id, n.tenant_id, n.items, n.node_no, n.generation, false as is_past
from holdfast.node n
where n.items_first is not null
union all
select p.items_first, p.run_id, p.tenant_id, p.items, p.node_no, p.generation, true
from holdfast.past_items p;

-- The place of a task as before, also of an item that was replaced.
create or replace function holdfast.place(task bigint) returns table (run_id bigint, node_no int, item_no int)
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
