-- Events: what happened, in an order that a reader can follow without missing a commit.

-- The position of a transaction's events is its transaction number plus a base. Each epoch (see 16_epochs.sql)
-- raises the base, because another server counts its transactions from another number. begin_epoch() replaces the
-- body; the plain SQL body is inlined, so a position stays an index condition.
create function holdfast.event_base() returns bigint language sql stable parallel safe return 0::bigint;
create function holdfast.event_position(transaction xid8) returns xid8
  language sql stable parallel safe
  return (holdfast.event_base() + transaction::text::bigint)::text::xid8;

-- One row per transaction and kind: task_ids[i] in its attempts[i]-th attempt. Written by the statement that made it
-- true. Readers order by (xid, seq) and stop before the oldest open transaction, so an event that commits late is
-- never skipped.
create table holdfast.event (
  xid xid8 not null default holdfast.event_position(pg_current_xact_id()),
  seq bigint generated always as identity,
  at timestamptz not null default holdfast.instant(),
  tenant_id int not null,
  kind text not null,
  task_ids bigint[] not null,
  attempts int[] not null,
  detail jsonb,
  primary key (xid, seq)
) with (toast_tuple_target = 8160);

-- The transaction number of a position.
create function holdfast.event_transaction(place xid8) returns xid8
  language sql immutable strict parallel safe
  return (place::text::bigint & 17592186044415)::text::xid8;

-- How far a reader may read from a position: to the last of `many` event rows of all tenants or, if fewer are
-- settled, to the last settled one (`is_end`); 0:0 if there is none. Runs with its owner's rights, because a tenant
-- cannot see the rows of others and could otherwise not stop before it has scanned past all of them.
--
-- The end is a row and not the oldest open transaction: some of the numbers before that one may belong to
-- transactions that left nothing on disk, and the server gives these numbers out again after a crash. No such number
-- is below a row that can be read, because the row's own commit is on disk.
create function holdfast.event_read_limit(
  from_xid xid8, from_seq bigint, many int, out xid xid8, out seq bigint, out is_end boolean
) returns record language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select coalesce(e.xid, l.xid, '0'), coalesce(e.seq, l.seq, 0), e.xid is null
  from (select) one
  left join lateral (
    select e.xid, e.seq
    from holdfast.event e
    where (e.xid, e.seq) >= (from_xid, from_seq)
      and e.xid < holdfast.event_position(pg_snapshot_xmin(pg_current_snapshot()))
    order by e.xid, e.seq
    offset many - 1
    limit 1
  ) e on true
  left join lateral (
    select e.xid, e.seq
    from holdfast.event e
    where e.xid < holdfast.event_position(pg_snapshot_xmin(pg_current_snapshot()))
    order by e.xid desc, e.seq desc
    limit 1
  ) l on e.xid is null
$$;
