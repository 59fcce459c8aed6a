-- How far a look at events goes, in place of `event_edge`, which older workers ask: the last of so many batches of anybody
-- from one on, or, where fewer are settled (`is_end`), the last that is; 0:0 if none is. As the owner: a tenant does not
-- see the batches of others, and could not stop before it has gone past all of them.
--
-- It ends at a batch, and not at the oldest open transaction: of the numbers before that one some may belong to
-- transactions that wrote nothing down, and after a crash the server gives them out again, to others. Before a batch that
-- can be read there are none of these: its own commit is on disk.
create function holdfast.event_reach(
  from_xid xid8, from_seq bigint, many int, out xid xid8, out seq bigint, out is_end boolean
) returns record language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select coalesce(e.xid, l.xid, '0'), coalesce(e.seq, l.seq, 0), e.xid is null
  from (select) one
  left join lateral (
    select e.xid, e.seq
    from holdfast.event e
    where (e.xid, e.seq) >= (from_xid, from_seq) and e.xid < holdfast.event_place(pg_snapshot_xmin(pg_current_snapshot()))
    order by e.xid, e.seq
    offset many - 1
    limit 1
  ) e on true
  left join lateral (
    select e.xid, e.seq
    from holdfast.event e
    where e.xid < holdfast.event_place(pg_snapshot_xmin(pg_current_snapshot()))
    order by e.xid desc, e.seq desc
    limit 1
  ) l on e.xid is null
$$;
