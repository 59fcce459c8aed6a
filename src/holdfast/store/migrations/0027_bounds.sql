-- Bounds: for whom a launcher launches, as a server last said it, so that `why` can say that it is not for this task.
-- Null: for all. A server of an older version leaves them as they are. And how far one look at events goes.

alter table holdfast.launcher add column tenant_ids int[], add column actions text[];

-- How far a look at events goes: the last of so many batches of anybody from one on; no row where fewer are settled. As the
-- owner: a tenant does not see the batches of others, and could not stop before it has gone past all of them.
create function holdfast.event_edge(from_xid xid8, from_seq bigint, many int, out xid xid8, out seq bigint)
  returns setof record language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select e.xid, e.seq
  from holdfast.event e
  where (e.xid, e.seq) >= (from_xid, from_seq)
    and e.xid < holdfast.event_place(pg_snapshot_xmin(pg_current_snapshot()))
  order by e.xid, e.seq
  offset many - 1
  limit 1
$$;
