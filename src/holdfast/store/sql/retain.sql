-- name: lock_blocks
-- One process at a time begins or drops blocks; the others skip their turn.
select pg_try_advisory_xact_lock(1752132966, 0);

-- name: block_age
-- Is the newest block from an earlier day?
select b.began_at < date_trunc('day', holdfast.instant())
from holdfast.block b
order by b.block desc
limit 1;

-- name: begin_block
-- Make the place for a new block of ids: new partitions. Nothing is stored there before `enter_block`.
select holdfast.begin_block();

-- name: enter_block
-- Let coming ids fall into the newest block. Only once it is committed: a sequence never goes back, and ids without a
-- partition cannot be stored. Under `lock_blocks`, so the sequence is set once. Ids handed out just before fall into the
-- previous block, which stays writable.
select setval('holdfast.task_id', b.first_id)
from holdfast.block b
cross join holdfast.task_id s
where b.block = (select max(n.block) from holdfast.block n) and s.last_value < b.first_id;

-- name: old_blocks
-- Blocks that ended longer ago than promised, get no more ids and hold nothing live, nothing failed or canceled.
select b.block
from holdfast.block b
join holdfast.block n on n.block = b.block + 1
where n.began_at < holdfast.instant() - make_interval(secs => $1::double precision * 86400)
  and b.last_id < (select s.last_value from holdfast.task_id s)
  and not exists (select from holdfast.live t where t.task_id between b.first_id and b.last_id)
  and not exists (select from holdfast.ended e where e.task_id between b.first_id and b.last_id);

-- name: drop_block
-- Drop one block of finished history.
select holdfast.drop_block($1);

-- name: forget_events
-- Events older than history, a bounded batch at a time.
delete from holdfast.event
where (xid, seq) in (
  select xid, seq
  from holdfast.event
  where at < holdfast.instant() - make_interval(secs => $1::double precision * 86400)
  order by xid, seq
  limit $2
);

-- name: forget_workers
-- Workers that left longer ago than history.
delete from holdfast.worker w
where w.state in ('gone', 'lost')
  and w.ended_at < holdfast.instant() - make_interval(secs => $1::double precision * 86400)
  and not exists (select from holdfast.live t where t.state = 'r' and t.worker_id = w.worker_id);

-- name: live_is_dirty
-- Does the hot table have dead rows worth a vacuum?
select coalesce(n_dead_tup > 2000, false)
from pg_stat_user_tables
where relid = 'holdfast.live'::regclass;

-- name: vacuum_live
-- Free what ended in the hot table; never give pages back under its users.
vacuum (truncate off, skip_locked) holdfast.live;
