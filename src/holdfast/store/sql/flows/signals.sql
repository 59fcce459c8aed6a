-- name: send_signal
-- Store an event from outside.
insert into holdfast.signal (tenant_id, wait_key, run_id, actor, payload)
values ($1, $2, $3, $4, $5)
returning signal_id;

-- name: approval_standing
-- Return the state of the approval of one node, with its newest answer; a node that was not released yet has no row.
-- Requires the lock of its run.
select n.state::text as state, n.generation, n.attempt, coalesce(n.deadline <= holdfast.instant(), false) as is_overdue,
  s.signal_id is not null as is_answered, s.actor, s.payload
from (values ($1::bigint, $2::int)) as g (run_id, node_no)
left join holdfast.node n on n.run_id = g.run_id and n.node_no = g.node_no
left join lateral (
  select s.signal_id, s.actor, s.payload
  from holdfast.signal s
  where s.tenant_id = $3 and s.wait_key = $4
  order by s.signal_id desc
  limit 1
) s on true;

-- name: forget_answers
-- Delete the answers to approvals of nodes that begin again: they need a new approval. Requires the lock of their run,
-- before its nodes lose their ends.
delete from holdfast.signal s
using holdfast.node n
where n.run_id = $1 and n.node_no = any($2::int[]) and n.wait_key like 'approval:%'
  and s.tenant_id = n.tenant_id and s.wait_key = n.wait_key;

-- name: answered_waits
-- Return waiting nodes for which an event arrived since their run began, each with the oldest event that its run has
-- not used, now or before its nodes were reset. An event sent to a run also reaches its child runs. An event that
-- arrived before such a child began, and after the topmost run did, answers only one of them: the next sub-flow that
-- waits for the same key is not answered by the event that answered the last. Reads the nodes that wait for one key
-- ($1, $2), those of some runs ($3), and a page of all: after ($4, $5) and up to ($6, $7).
select n.run_id, n.node_no, s.signal_id
from (
  select n.run_id, n.node_no, n.tenant_id, n.wait_key
  from holdfast.node n
  where n.state = 'w' and n.tenant_id = $1::int and n.wait_key = $2::text
  union all
  select n.run_id, n.node_no, n.tenant_id, n.wait_key
  from unnest($3::bigint[]) as g (run_id)
  cross join lateral (
    select n.run_id, n.node_no, n.tenant_id, n.wait_key
    from holdfast.node n
    where n.state = 'w' and n.run_id = g.run_id
    order by n.node_no
    offset 0
  ) n
  union all
  select n.run_id, n.node_no, n.tenant_id, n.wait_key
  from holdfast.node n
  where n.state = 'w' and n.run_id between $4::bigint and $6::bigint
    and (n.run_id, n.node_no) > ($4::bigint, $5::int) and (n.run_id, n.node_no) <= ($6::bigint, $7::int)
) n
cross join lateral (
  select r.created_at
  from holdfast.run r
  where r.run_id = n.run_id and r.state = 'o'
  limit 1
) r
cross join lateral (
  select s.signal_id
  from holdfast.signal s
  where s.tenant_id = n.tenant_id and s.wait_key = n.wait_key
    and s.at >= (select min(a.created_at) from holdfast.ancestor_runs(n.run_id) a)
    and (s.run_id is null or s.run_id = any(array(select a.run_id from holdfast.ancestor_runs(n.run_id) a)))
    and (s.at >= r.created_at or not holdfast.is_signal_taken(s.signal_id, n.run_id))
    and not exists (select from holdfast.node u where u.run_id = n.run_id and u.signal_id = s.signal_id)
    and not exists (select from holdfast.past_signal u where u.run_id = n.run_id and u.signal_id = s.signal_id)
  order by s.signal_id
  limit 1
) s
limit $8
offset $9;

-- name: wait_edge
-- Return the last waiting node of a page of $3 nodes after ($1, $2), and the number of nodes in it; no row if none
-- waits.
select n.run_id, n.node_no, (count(*) over ())::int as waits
from (
  select n.run_id, n.node_no
  from holdfast.node n
  where n.state = 'w' and n.run_id >= $1::bigint and (n.run_id, n.node_no) > ($1::bigint, $2::int)
  order by n.run_id, n.node_no
  limit $3::int
) n
order by n.run_id desc, n.node_no desc
limit 1;

-- name: open_runs_below
-- Return a run and all its open descendants.
with recursive below as (
  select $1::bigint as run_id
  union all
  select c.run_id
  from below
  cross join lateral (
    select c.run_id
    from holdfast.run c
    where c.parent_run_id = below.run_id and c.state = 'o'
    offset 0
  ) c
)
select array_agg(below.run_id)
from below;

-- name: overdue_waits
-- Return waiting nodes whose deadline has passed.
select n.run_id, n.node_no
from holdfast.node n
where n.state = 'w' and n.deadline <= holdfast.instant()
order by n.deadline
limit $1
offset $2;

-- name: lock_signal
-- Lock an event that arrived before a child run began, until the transaction ends, so that one run of a family at a
-- time can use it: such an event answers one of them. Taken after the lock of the run; a later statement sees what the
-- previous holder used.
select pg_advisory_xact_lock(1752132971, (s.signal_id % 2147483647)::int)
from holdfast.signal s
join holdfast.run r on r.run_id = $2 and r.parent_run_id is not null and r.created_at > s.at
where s.signal_id = $1;

-- name: read_signal
-- Return one event, unless the run has used it meanwhile, or a child run that began after the event finds it used by
-- another run of its family. Requires the lock of the run.
select s.signal_id, s.actor, s.payload
from holdfast.signal s
where s.signal_id = $1
  and not exists (select from holdfast.node u where u.run_id = $2 and u.signal_id = s.signal_id)
  and not exists (
    select
    from holdfast.run r
    where r.run_id = $2 and r.parent_run_id is not null and r.created_at > s.at and holdfast.is_signal_taken(s.signal_id, r.run_id)
  );

-- name: waiting_node
-- Return a waiting node, if it still waits, under the lock of its run.
select n.generation, n.attempt, n.deadline <= holdfast.instant() as is_overdue
from holdfast.node n
where n.run_id = $1 and n.node_no = $2 and n.state = 'w';

-- name: forget_signals
-- Delete a bounded batch of expired events after $3: those sent to a run that has ended, and those sent to all runs if
-- the tenant has no open run that began before them. Returns how many old events were read, and the last of them.
with looked as materialized (
  select s.signal_id, s.tenant_id, s.run_id, s.at
  from holdfast.signal s
  where s.signal_id > $3::bigint
  order by s.signal_id
  -- Events are stored in about the order of arrival, so the first one shows whether any is old.
  limit (
    select case when first.at < holdfast.instant() - make_interval(secs => $1::double precision * 86400) then $2::bigint else 0 end
    from (select s.at from holdfast.signal s where s.signal_id > $3::bigint order by s.signal_id limit 1) first
    union all
    select 0
    limit 1
  )
),
old as materialized (
  select looked.*
  from looked
  where looked.at < holdfast.instant() - make_interval(secs => $1::double precision * 86400)
),
open as materialized (
  select r.tenant_id, min(r.created_at) as since
  from holdfast.run r
  where r.state = 'o' and exists (select from old)
  group by r.tenant_id
),
deleted as (
  delete from holdfast.signal s
  where s.signal_id = any(array(
    select old.signal_id
    from old
    left join open on open.tenant_id = old.tenant_id
    left join holdfast.run r on r.run_id = old.run_id and r.state = 'o'
    where case when old.run_id is null then open.since is null or open.since > old.at else r.run_id is null end
  ))
)
select count(*) as signals, coalesce(max(old.signal_id), 0) as last
from old;
