-- name: lock_blocks() -> value?
-- Lock blocks, so that one process at a time begins or drops them; the others skip their turn.
select pg_try_advisory_xact_lock(1752132966, 0);

-- name: block_age() -> value?
-- Return whether the newest block is from an earlier day, or from before there were several tenants.
select b.began_at < date_trunc('day', holdfast.instant())
  or (not b.is_shared and (select count(*) from holdfast.tenant) > 1)
from holdfast.block b
order by b.block desc
limit 1;

-- name: begin_block() -> nothing
-- Create the partitions of the next block of ids.
select holdfast.begin_block();

-- name: lock_spans() -> nothing
-- Block the taking of spans until this transaction ends: a process between its two steps would set the sequence back.
select pg_advisory_xact_lock(1752132967, 0);

-- name: enter_block() -> nothing
-- Move the sequences into the newest block, once its partitions are committed: a sequence does not roll back, and an id
-- without a partition cannot be stored. Ids assigned before still belong to the previous block, which stays writable.
-- Both sequences only ever move forward. Requires `lock_spans`.
select case when s.last_value < b.first_id then setval('holdfast.task_id', b.first_id) end,
  case when p.last_value < b.first_span then setval('holdfast.span', b.first_span) end
from holdfast.task_id s
cross join holdfast.span p
cross join (
  select first_id, (first_id + last_id) / 2 + 1 as first_span from holdfast.block order by block desc limit 1
) b;

-- name: wait_briefly() -> nothing
-- Limit the wait for locks. Dropping a partition waits for its users, and new users wait behind it, so it is better to
-- try again in a minute. The timeout is shorter than the deadlock check, which might cancel the other transaction.
set local lock_timeout = '500ms';

-- name: old_blocks(days) -> rows
-- Return blocks that ended before the retention period and still have ids that are not needed (see
-- holdfast.needed_ids).
select b.block
from holdfast.block b
cross join lateral (
  select n.began_at
  from holdfast.block n
  where n.block > b.block
  order by n.block
  limit 1
) n
cross join lateral (select holdfast.instant() - make_interval(secs => @days::double precision * 86400) as at) promised
where n.began_at < promised.at and holdfast.has_unneeded(b.block, promised.at)
order by b.block;

-- name: compact_block(block, days, kept_max) -> value?
-- Drop the ids of one block (@block) that are not needed. If more than @kept_max ids are needed, the block is left as it is.
select holdfast.compact_block(@block, holdfast.instant() - make_interval(secs => @days::double precision * 86400), @kept_max::bigint);

-- name: delete_old_events(days, limit, after_xid, after_seq) -> row?
-- Delete a bounded batch of events beyond the retention, after (@after_xid, @after_seq). Events are stored in about the order in which
-- they happened: the statement walks from one to the next and stops at the first recent one. Returns how many, and the
-- last of them.
with recursive old as (
  select e.*
  from (
    select e.xid, e.seq, e.ctid as place, e.at, 1 as nth
    from holdfast.event e
    where (e.xid, e.seq) > (@after_xid::text::xid8, @after_seq::bigint)
    order by e.xid, e.seq
    limit 1
  ) e
  where e.at < holdfast.instant() - make_interval(secs => @days::double precision * 86400)
  union all
  select e.xid, e.seq, e.place, e.at, old.nth + 1
  from old
  cross join lateral (
    select e.xid, e.seq, e.ctid as place, e.at
    from holdfast.event e
    where (e.xid, e.seq) > (old.xid, old.seq)
    order by e.xid, e.seq
    limit 1
  ) e
  where old.nth < @limit::int and e.at < holdfast.instant() - make_interval(secs => @days::double precision * 86400)
),
deleted as (
  delete from holdfast.event e
  where e.ctid = any(array(select old.place from old))
)
select old.nth as events, old.xid::text as xid, old.seq
from old
order by old.nth desc
limit 1;

-- name: delete_old_workers(days) -> nothing
-- Delete workers that left before the retention period and that no failure refers to: the version on which a task
-- failed is needed as long as its failure is kept. Scans all failures, so it runs once a day.
delete from holdfast.worker w
where w.state in ('gone', 'lost')
  and w.ended_at < holdfast.instant() - make_interval(secs => @days::double precision * 86400)
  and not exists (select from holdfast.live t where t.state = 'r' and t.worker_id = w.worker_id)
  and not exists (select from holdfast.failure f where f.worker_id = w.worker_id);

-- name: live_is_dirty() -> value?
-- Return whether the hot table has enough dead rows for a vacuum.
select coalesce(n_dead_tup > 2000, false)
from pg_stat_user_tables
where relid = 'holdfast.live'::regclass;

-- name: vacuum_live() -> nothing
-- Vacuum the hot table without truncating it, which would block its users.
vacuum (truncate off, skip_locked) holdfast.live;
