-- name: lock_blocks
-- One process at a time begins or drops blocks; the others skip their turn.
select pg_try_advisory_xact_lock(1752132966, 0);

-- name: block_age
-- Is the newest block from an earlier day, or from before there were several tenants?
select b.began_at < date_trunc('day', holdfast.instant())
  or (not b.is_shared and (select count(*) from holdfast.tenant) > 1)
from holdfast.block b
order by b.block desc
limit 1;

-- name: begin_block
-- Make the partitions of the next block of ids.
select holdfast.begin_block();

-- name: lock_spans
-- Nobody takes a span until this transaction ends: who is between its two steps would put the sequence back.
select pg_advisory_xact_lock(1752132967, 0);

-- name: enter_block
-- Let coming ids fall into the newest block, once its partitions are committed: a sequence does not roll back, and an id
-- without a partition cannot be stored. Ids handed out before still fall into the previous block, which stays writable.
-- Each of the two sequences only ever goes forward. Under `lock_spans`.
select case when s.last_value < b.first_id then setval('holdfast.task_id', b.first_id) end,
  case when p.last_value < b.first_span then setval('holdfast.span', b.first_span) end
from holdfast.task_id s
cross join holdfast.span p
cross join (
  select first_id, (first_id + last_id) / 2 + 1 as first_span from holdfast.block order by block desc limit 1
) b;

-- name: wait_briefly
-- Dropping a partition waits for its users, and new users wait behind it: rather try again in a minute.
set local lock_timeout = '1s';

-- name: old_blocks
-- Blocks that ended longer ago than promised and hold nothing live, no failure that nobody dealt with, no run that needs
-- them. What was canceled, or whose letters were all resolved so long ago, goes with its block; a failure that was
-- ignored is left, not over.
select b.block
from holdfast.block b
cross join lateral (
  select n.began_at
  from holdfast.block n
  where n.block > b.block
  order by n.block
  limit 1
) n
cross join lateral (select holdfast.instant() - make_interval(secs => $1::double precision * 86400) as at) promised
where n.began_at < promised.at
  and not exists (select from holdfast.live t where t.task_id between b.first_id and b.last_id)
  and not exists (
    select from holdfast.ended e
    where e.task_id between b.first_id and b.last_id
      and (
        e.ended_at >= promised.at
        or (e.state = 'f' and e.has_letter is not true)
        or exists (
          select from holdfast.dead_letter d
          where d.task_id = e.task_id
            and (
              d.state in ('open', 'retry_requested', 'retrying')
              or (d.state = 'ignored' and e.state = 'f' and not exists (
                select from holdfast.dead_letter n where n.task_id = d.task_id and n.dead_letter_id > d.dead_letter_id
              ))
              or d.changed_at >= promised.at
            )
        )
      )
  )
  -- A node that failed without a task has no end of its own, only its letter.
  and not exists (
    select from holdfast.dead_letter d
    where d.task_id between b.first_id and b.last_id and d.run_id is not null and d.changed_at >= promised.at
  )
  -- What the items of a run returned stays as long as the run, whose own block may stay for the sake of another.
  and not exists (
    select from holdfast.node n
    where n.items_first between b.first_id and b.last_id and n.run_id < b.first_id
  )
  -- A run that is not over, or may be run again, may have items in any block that began before it ended.
  and not exists (
    select from holdfast.run r
    where r.state = 'o' and r.run_id <= b.last_id
    union all
    select from holdfast.run r
    where r.state in ('f', 'x') and r.run_id <= b.last_id and r.ended_at >= b.began_at
      and (
        r.ended_at >= promised.at
        or exists (
          select from holdfast.dead_letter d
          where d.run_id = r.run_id and d.state <> 'resolved'
            and (
              d.state <> 'ignored'
              or (
                holdfast.rests_failed(d.task_id, d.run_id, d.node_no)
                and not exists (
                  select from holdfast.dead_letter n where n.task_id = d.task_id and n.dead_letter_id > d.dead_letter_id
                )
              )
              or d.changed_at >= promised.at
            )
        )
        -- Somebody may yet run again what it started, or what that did, and it would be told.
        or exists (
          with recursive below as (
            select c.run_id
            from holdfast.run c
            where c.parent_run_id = r.run_id
            union
            select c.run_id
            from below
            join holdfast.run c on c.parent_run_id = below.run_id
          )
          select
          from below
          join holdfast.dead_letter d on d.run_id = below.run_id and d.state <> 'resolved'
          where d.state in ('open', 'retry_requested', 'retrying')
        )
      )
  )
order by b.block;

-- name: lock_old_runs
-- Runs that are over and reach into a block: nobody runs them again while it is dropped.
select r.run_id
from holdfast.run r
join holdfast.block b on b.block = $1
where r.state in ('f', 'x') and r.run_id <= b.last_id and r.ended_at >= b.began_at
order by r.run_id
for update of r;

-- name: forget_completed_runs
-- Take away the runs of a block that completed. Who runs one again, a node at a time, holds its row and has it open when it
-- lets go: of the two, one finds it. Then it stays, and the block is no longer an old one.
delete from holdfast.run r
using holdfast.block b
where b.block = $1 and r.run_id between b.first_id and b.last_id and r.state = 'c'
returning r.run_id;

-- name: forget_ended
-- Take away the ends of a block's tasks and of its runs' items, with their letters. The end of a task is what a re-drive
-- takes away: of the two, one finds it. What ended since, or has a letter that somebody has yet to act on, stays, and the
-- block is no longer an old one.
with gone as (
  delete from holdfast.ended e
  using holdfast.block b
  where b.block = $1 and (e.task_id between b.first_id and b.last_id or e.run_id between b.first_id and b.last_id)
    and e.ended_at < holdfast.instant() - make_interval(secs => $2::double precision * 86400)
  returning e.task_id
)
delete from holdfast.dead_letter d
using holdfast.block b
where b.block = $1 and (d.task_id between b.first_id and b.last_id or d.run_id between b.first_id and b.last_id)
  and d.state in ('resolved', 'ignored')
returning d.dead_letter_id;

-- name: drop_block
-- Drop one block of finished history.
select holdfast.drop_block($1);

-- name: forget_events
-- Events older than history, a bounded batch from behind ($3, $4). They lie in about the order in which they happened: goes
-- from one to the next, and no further than the first that is young. Answers how many, and the last of them.
with recursive old as (
  select e.*
  from (
    select e.xid, e.seq, e.ctid as place, e.at, 1 as nth
    from holdfast.event e
    where (e.xid, e.seq) > ($3::text::xid8, $4::bigint)
    order by e.xid, e.seq
    limit 1
  ) e
  where e.at < holdfast.instant() - make_interval(secs => $1::double precision * 86400)
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
  where old.nth < $2::int and e.at < holdfast.instant() - make_interval(secs => $1::double precision * 86400)
),
gone as (
  delete from holdfast.event e
  where e.ctid = any(array(select old.place from old))
)
select old.nth as events, old.xid::text as xid, old.seq
from old
order by old.nth desc
limit 1;

-- name: forget_workers
-- Workers that left longer ago than history, and that no failure on record names: on which version a task failed is asked
-- as long as it rests. Looks through all failures: once a day.
delete from holdfast.worker w
where w.state in ('gone', 'lost')
  and w.ended_at < holdfast.instant() - make_interval(secs => $1::double precision * 86400)
  and not exists (select from holdfast.live t where t.state = 'r' and t.worker_id = w.worker_id)
  and not exists (select from holdfast.failure f where f.worker_id = w.worker_id);

-- name: live_is_dirty
-- Does the hot table have dead rows worth a vacuum?
select coalesce(n_dead_tup > 2000, false)
from pg_stat_user_tables
where relid = 'holdfast.live'::regclass;

-- name: vacuum_live
-- Free what ended in the hot table; never give pages back under its users.
vacuum (truncate off, skip_locked) holdfast.live;
