-- name: register_worker(name, version, queues?, actions, slots, labels, tenant_id, token_id?) -> row
-- Register a new worker incarnation. Its id is never reused.
insert into holdfast.worker (name, version, queues, actions, slots, labels, tenant_id, token_id)
values (@name, @version, @queues::text[], @actions::text[], @slots, @labels::jsonb, @tenant_id, @token_id)
returning worker_id, incarnation;

-- name: beat_worker(worker_id, health) -> row?
-- Record a worker's heartbeat and health. The result says whether it should drain, how many workers of its kind there
-- are (same tenant, actions and queues) and how many of those registered before it. A worker marked as lost, after a
-- long outage or a jump of the clock, is present again: its leases were decided without it.
update holdfast.worker as me
set beat_at = holdfast.instant(), health = @health::jsonb, ended_at = null,
  state = case when me.state <> 'lost' then me.state when me.drained_at is null then 'active' else 'draining' end
from (
  select count(*)::int as crew, count(*) filter (where w.worker_id < @worker_id)::int as rank
  from holdfast.worker w
  join holdfast.worker mine on mine.worker_id = @worker_id
  where w.ended_at is null and w.tenant_id = mine.tenant_id and w.actions = mine.actions
    and w.queues is not distinct from mine.queues
) crew
where me.worker_id = @worker_id and me.state in ('active', 'draining', 'lost')
returning me.state, crew.crew, crew.rank;

-- name: beat_workers(worker_ids, health?) -> rows
-- Record heartbeats of remote workers, each of which sent a request or waits for a response; one of them may report its
-- health. A worker marked as lost is present again: its leases were decided without it.
update holdfast.worker as w
set beat_at = holdfast.instant(), health = coalesce(@health::jsonb, w.health),
  state = case when w.state <> 'lost' then w.state when w.drained_at is null then 'active' else 'draining' end,
  ended_at = null
where w.worker_id = any(@worker_ids::bigint[]) and w.state in ('active', 'draining', 'lost')
returning w.worker_id, w.state;

-- name: retire_worker(worker_id, was_asked_to_stop) -> rows
-- Mark a worker as gone because it left or its parent saw it die: none of its attempts can still run. @was_asked_to_stop: it was asked
-- to stop, like a draining worker.
update holdfast.worker
set state = 'gone', ended_at = holdfast.instant(),
  drained_at = case when @was_asked_to_stop then coalesce(drained_at, holdfast.instant()) else drained_at end
where worker_id = @worker_id and state in ('active', 'draining', 'lost')
returning worker_id;

-- name: drain_worker(worker_id) -> rows
-- Ask a worker to claim no more tasks and to leave; a missing heartbeat does not undo it.
update holdfast.worker
set state = 'draining', drained_at = holdfast.instant()
where worker_id = @worker_id and state = 'active'
returning worker_id, tenant_id;

-- name: lose_workers(silent_seconds) -> rows
-- Mark workers as lost that were silent for longer than any lease. Leases decide about their tasks.
update holdfast.worker
set state = 'lost', ended_at = holdfast.instant()
where state in ('active', 'draining') and beat_at < holdfast.instant() - make_interval(secs => @silent_seconds)
returning worker_id;

-- name: list_workers(limit, tenant_id?, number?, is_present?) -> rows
-- nullable: queues, ended_at, probe_url, checked_at, is_healthy, failures, detail
-- Return workers of one tenant or of all, present ones first.
select w.worker_id, w.name, w.version, w.state, w.slots, w.queues, w.actions, w.started_at, w.beat_at, w.ended_at,
  w.health::text as health, extract(epoch from holdfast.instant() - w.beat_at)::double precision as beat_age_seconds,
  (
    select count(*)::int
    from holdfast.live t
    where t.state = 'r' and t.due_at is null and t.tenant_id = w.tenant_id and t.worker_id = w.worker_id
  ) as running,
  w.labels->>'probe_url' as probe_url, p.checked_at, p.is_healthy, p.failures, p.detail
from holdfast.worker w
left join holdfast.probe p on p.worker_id = w.worker_id
where (@tenant_id::int is null or w.tenant_id = @tenant_id)
  and (@number::bigint is null or (w.state in ('active', 'draining'), w.worker_id) < (@is_present::boolean, @number))
order by (w.state in ('active', 'draining')) desc, w.worker_id desc
limit @limit;

-- name: read_worker(worker_id) -> row?
-- nullable: queues
-- Return the registration and the state of one worker.
select w.worker_id, w.actions, w.queues, w.slots, w.state, coalesce(w.token_id, '') as token_id
from holdfast.worker w
where w.worker_id = @worker_id;
