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
-- Make the partitions of the next block of ids.
select holdfast.begin_block();

-- name: enter_block
-- Let coming ids fall into the newest block, once its partitions are committed: a sequence does not roll back, and an id
-- without a partition cannot be stored. Ids handed out before still fall into the previous block, which stays writable.
select setval('holdfast.task_id', b.first_id), setval('holdfast.span', (b.first_id + b.last_id) / 2 + 1)
from holdfast.task_id s
cross join (select first_id, last_id from holdfast.block order by block desc limit 1) b
where s.last_value < b.first_id;

-- name: wait_briefly
-- Dropping a partition waits for its users, and new users wait behind it: rather try again in a minute.
set local lock_timeout = '1s';

-- name: old_blocks
-- Blocks that ended longer ago than promised and hold nothing live, nothing failed or canceled, no run that needs them.
select b.block
from holdfast.block b
cross join lateral (
  select n.began_at
  from holdfast.block n
  where n.block > b.block
  order by n.block
  limit 1
) n
where n.began_at < holdfast.instant() - make_interval(secs => $1::double precision * 86400)
  and not exists (select from holdfast.live t where t.task_id between b.first_id and b.last_id)
  and not exists (select from holdfast.ended e where e.task_id between b.first_id and b.last_id)
  -- A run that is not over, or may be run again, may have items in any block that began before it ended.
  and not exists (
    select from holdfast.run r
    where r.state = 'o' and r.run_id <= b.last_id
    union all
    select from holdfast.run r
    where r.state in ('f', 'x') and r.run_id <= b.last_id and r.ended_at >= b.began_at
  );

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
