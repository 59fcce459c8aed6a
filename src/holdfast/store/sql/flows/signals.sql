-- name: send_signal(tenant_id, wait_key, run_id?, actor, payload) -> value
-- Store an event from outside.
insert into holdfast.signal (tenant_id, wait_key, run_id, actor, payload)
values (@tenant_id, @wait_key, @run_id, @actor, @payload)
returning signal_id;

-- name: approval_state(run_id, node_no, tenant_id, key) -> row
-- nullable: state, actor, payload
-- null with state: generation, attempt
-- Return the state of the approval of one node, with its newest answer; a node that was not released yet has no row.
-- Requires the lock of its run.
select n.state::text as state, n.generation, n.attempt, coalesce(n.deadline <= holdfast.instant(), false) as is_overdue,
  s.signal_id is not null as is_answered, s.actor, s.payload
from (values (@run_id::bigint, @node_no::int)) as g (run_id, node_no)
left join holdfast.node n on n.run_id = g.run_id and n.node_no = g.node_no
left join lateral (
  select s.signal_id, s.actor, s.payload
  from holdfast.signal s
  where s.tenant_id = @tenant_id and s.wait_key = @key
  order by s.signal_id desc
  limit 1
) s on true;

-- name: delete_signal_answers(run_id, node_nos) -> nothing
-- Delete the answers to approvals of nodes that begin again: they need a new approval. Requires the lock of their run,
-- before its nodes lose their ends.
delete from holdfast.signal s
using holdfast.node n
where n.run_id = @run_id and n.node_no = any(@node_nos::int[]) and n.wait_key like 'approval:%'
  and s.tenant_id = n.tenant_id and s.wait_key = n.wait_key;

-- name: answered_waits(tenant_id?, wait_key?, run_ids?, after_run_id?, after_node_no?, last_run_id?, last_node_no?,
--   limit, offset) -> rows
-- Return waiting nodes for which an event arrived since their run began, each with the oldest event that its run has
-- not used, now or before its nodes were reset. An event sent to a run also reaches its child runs. An event that
-- arrived before such a child began, and after the topmost run did, answers only one of them: the next sub-flow that
-- waits for the same key is not answered by the event that answered the last. Reads the nodes that wait for one key
-- (@tenant_id, @wait_key), those of some runs (@run_ids), and a page of all: after (@after_run_id, @after_node_no) and up to (@last_run_id, @last_node_no).
select n.run_id, n.node_no, s.signal_id
from (
  select n.run_id, n.node_no, n.tenant_id, n.wait_key
  from holdfast.node n
  where n.state = 'w' and n.tenant_id = @tenant_id::int and n.wait_key = @wait_key::text
  union all
  select n.run_id, n.node_no, n.tenant_id, n.wait_key
  from unnest(@run_ids::bigint[]) as g (run_id)
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
  where n.state = 'w' and n.run_id between @after_run_id::bigint and @last_run_id::bigint
    and (n.run_id, n.node_no) > (@after_run_id::bigint, @after_node_no::int) and (n.run_id, n.node_no) <= (@last_run_id::bigint, @last_node_no::int)
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
limit @limit
offset @offset;

-- name: last_wait_of_page(after_run_id, after_node_no, limit) -> row?
-- Return the last waiting node of a page of @limit nodes after (@after_run_id, @after_node_no), and the number of nodes in it; no row if none
-- waits.
select n.run_id, n.node_no, (count(*) over ())::int as waits
from (
  select n.run_id, n.node_no
  from holdfast.node n
  where n.state = 'w' and n.run_id >= @after_run_id::bigint and (n.run_id, n.node_no) > (@after_run_id::bigint, @after_node_no::int)
  order by n.run_id, n.node_no
  limit @limit::int
) n
order by n.run_id desc, n.node_no desc
limit 1;

-- name: open_runs_below(run_id) -> value
-- Return a run and all its open descendants.
with recursive below as (
  select @run_id::bigint as run_id
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

-- name: overdue_waits(limit, offset) -> rows
-- Return waiting nodes whose deadline has passed.
select n.run_id, n.node_no
from holdfast.node n
where n.state = 'w' and n.deadline <= holdfast.instant()
order by n.deadline
limit @limit
offset @offset;

-- name: lock_signal(signal_id, run_id) -> nothing
-- Lock an event that arrived before a child run began, until the transaction ends, so that one run of a family at a
-- time can use it: such an event answers one of them. Taken after the lock of the run; a later statement sees what the
-- previous holder used.
select pg_advisory_xact_lock(1752132971, (s.signal_id % 2147483647)::int)
from holdfast.signal s
join holdfast.run r on r.run_id = @run_id and r.parent_run_id is not null and r.created_at > s.at
where s.signal_id = @signal_id;

-- name: read_signal(signal_id, run_id) -> row?
-- Return one event, unless the run has used it meanwhile, or a child run that began after the event finds it used by
-- another run of its family. Requires the lock of the run.
select s.signal_id, s.actor, s.payload
from holdfast.signal s
where s.signal_id = @signal_id
  and not exists (select from holdfast.node u where u.run_id = @run_id and u.signal_id = s.signal_id)
  and not exists (
    select
    from holdfast.run r
    where r.run_id = @run_id and r.parent_run_id is not null and r.created_at > s.at and holdfast.is_signal_taken(s.signal_id, r.run_id)
  );

-- name: waiting_node(run_id, node_no) -> row?
-- nullable: is_overdue
-- Return a waiting node, if it still waits, under the lock of its run.
select n.generation, n.attempt, n.deadline <= holdfast.instant() as is_overdue
from holdfast.node n
where n.run_id = @run_id and n.node_no = @node_no and n.state = 'w';

-- name: delete_old_signals(days, limit, after_signal_id) -> row
-- Delete a bounded batch of expired events after @after_signal_id: those sent to a run that has ended, and those sent to all runs if
-- the tenant has no open run that began before them. Returns how many old events were read, and the last of them.
with looked as materialized (
  select s.signal_id, s.tenant_id, s.run_id, s.at
  from holdfast.signal s
  where s.signal_id > @after_signal_id::bigint
  order by s.signal_id
  -- Events are stored in about the order of arrival, so the first one shows whether any is old.
  limit (
    select case when first.at < holdfast.instant() - make_interval(secs => @days::double precision * 86400) then @limit::bigint else 0 end
    from (select s.at from holdfast.signal s where s.signal_id > @after_signal_id::bigint order by s.signal_id limit 1) first
    union all
    select 0
    limit 1
  )
),
old as materialized (
  select looked.*
  from looked
  where looked.at < holdfast.instant() - make_interval(secs => @days::double precision * 86400)
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
