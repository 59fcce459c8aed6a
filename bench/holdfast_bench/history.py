"""A long history, written with plain SQL in seconds, for the measurement of lists.

One task in ten is a node of a run. One task in twenty failed and left a dead letter, one in five has an effect; all
others completed. As many more are queued. In addition there is what years of use leave behind: an audit log, events,
ended workers, schedules with their slots. Two more tenants have few rows or none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.client.client import Client
from holdfast_bench.arena import Arena
from holdfast_bench.flow import a_chain
from holdfast_bench.neighbours import make_neighbours

NODES = 9
NODES_PART = 10
QUEUES, ACTIONS = 50, 2
OPEN_RUNS = 500
HUNDRED = 100
TAG, RARE_TAG = "nightly", "seldom"

_NAMES = f"""
insert into holdfast.queue (tenant_id, name) select 1, 'queue' || n from generate_series(1, {QUEUES + 1}) n;
insert into holdfast.policy (tenant_id, digest, max_retries, max_losses, content) values (1, 'history', 3, 3, '{{}}');
insert into holdfast.lane (tenant_id, queue_id, action)
select 1, queue_id, 'shop.' || name || '_' || n
from holdfast.queue
cross join generate_series(1, {ACTIONS}) n
where name like 'queue%';
insert into holdfast.action (tenant_id, name, queue, policy_id, version)
select 1, l.action, q.name, (select policy_id from holdfast.policy where digest = 'history'), '1.0'
from holdfast.lane l
join holdfast.queue q on q.queue_id = l.queue_id
where l.action like 'shop.%';
create temporary table lanes as
select lane_id, row_number() over (order by lane_id) - 1 as number
from holdfast.lane
where action like 'shop.queue%' and action not like 'shop.queue{QUEUES + 1}\\_%';
insert into holdfast.worker (name, actions, slots, state, ended_at)
select 'worker' || n, array(select action from holdfast.lane where action like 'shop.%'), 10,
  case when n % 40 = 0 then 'active' else 'gone' end, case when n % 40 > 0 then now() end
from generate_series(1, 2000) n
"""
# `$1` is the first id, `$2` the one after the last.
_TASKS = f"""
insert into holdfast.body (task_id, created_at, tenant_id, lane_id, policy_id, priority, input, tags)
select i.task_id, now(), 1, lanes.lane_id, p.policy_id, 5, '{{"order": 1}}',
  case when i.task_id % 50 = 0 then '{{{TAG}}}'::text[] end
from generate_series($1::bigint, $2::bigint - 1) i (task_id)
join lanes on lanes.number = i.task_id % {QUEUES * ACTIONS}
cross join (select policy_id from holdfast.policy where digest = 'history') p
"""
_COMPLETED = """
insert into holdfast.attempt (task_id, started_at, ended_at, attempt, tenant_id, state, lease_token, output)
select i.task_id, now(), now(), 1, 1, 'c', '00000000-0000-0000-0000-000000000000', 'null'
from generate_series($1::bigint, $2::bigint - 1) i (task_id)
where i.task_id % 20 > 0
"""
_RUNS = f"""
insert into holdfast.run (run_id, tenant_id, snapshot_id, nodes, pending, active, state, ended_at, tags, input,
  failed,
  canceled_at)
select i.run_id, 1, (select max(snapshot_id) from holdfast.snapshot), {NODES}, 0, 0,
  case i.run_id % 1000 when 0 then 'f' when 10 then 'x' else 'c' end, now(),
  case when i.run_id % 500 = 0 then '{{{TAG}}}'::text[] end, '{{"base": 0}}',
  case i.run_id % 1000 when 0 then 1 else 0 end,
  case i.run_id % 1000 when 10 then now() end
from generate_series($1::bigint, $2::bigint - 1, {NODES + 1}) i (run_id)
"""
_NODES = f"""
insert into holdfast.attempt (task_id, started_at, ended_at, attempt, tenant_id, state, lease_token, output)
select i.run_id + n, now(), now(), 1, 1, 'c', '00000000-0000-0000-0000-000000000000', 'null'
from generate_series($1::bigint, $2::bigint - 1, {NODES + 1}) i (run_id)
cross join generate_series(1, {NODES}) n
"""
_ENDED = """
insert into holdfast.ended (task_id, tenant_id, lane_id, policy_id, state, attempt, retries, losses, max_retries,
  max_losses, generation,
  priority, created_at, ended_at, input, tags, has_letter)
select b.task_id, 1, b.lane_id, b.policy_id, case when b.task_id % 200 = 0 then 'x' else 'f' end, 4, 3, 0, 3, 3, 1,
  5, now(), now(),
  b.input, b.tags, b.task_id % 200 > 0
from holdfast.body b
where b.task_id >= $1 and b.task_id < $2 and b.task_id % 20 = 0
"""
_AFTER = """
delete from holdfast.body b where exists (select from holdfast.ended e where e.task_id = b.task_id);
insert into holdfast.failure (task_id, attempt, tenant_id, state, lease_token, started_at, ended_at, code, type,
  message, traceback,
  decision, reason, rule, sentence)
select task_id, 4, 1, 'f', '00000000-0000-0000-0000-000000000000', now(), now(), 'exception',
  'ConnectionRefusedError',
  'connection refused by 10.0.0.1', repeat('line of a traceback', 40), 'stop', 'budget', 'retries',
  'It failed four times.'
from holdfast.ended
where state = 'f';
insert into holdfast.dead_letter (tenant_id, task_id, source_id, lane_id, attempts, generation, fingerprint, cause,
  reason, state,
  disposition, actor)
select 1, e.task_id, e.task_id::text, e.lane_id, 4, 1, 'fault' || (task_id / 20) % 500, 'budget', 'retries',
  case (task_id / 20) % 100 when 1 then 'resolved' when 2 then 'ignored' else 'open' end, 'ignored', 'somebody'
from holdfast.ended e
where e.state = 'f'
order by e.task_id;
insert into holdfast.effect (tenant_id, key, task_id, attempt, ordinal, generation, lease_token, name, digest,
  state, receipt, answered_at)
select 1, task_id::text, task_id, 1, 0, 1, '00000000-0000-0000-0000-000000000000', 'mail.send', '',
  case when task_id % 10000 = 0 then 'u' else 'd' end, case when task_id % 10000 > 0 then 'null'::bytea end,
  case when task_id % 10000 > 0 then now() end
from holdfast.body
where task_id % 5 = 0;
insert into holdfast.audit (tenant_id, seq, at, actor, verb, subject_kind, subject_id, reason, before, after,
  prev_hash, hash)
select 1, n, now(), 'cli:' || n % 20, case when n = 1 then 'tenant.limit' else 'task.retry' end, 'task', n::text,
  '', 'null', 'null',
  decode(repeat('00', 32), 'hex'), decode(repeat('00', 32), 'hex')
from generate_series(1, (select count(*) from holdfast.effect)) n;
insert into holdfast.event (tenant_id, kind, task_ids, attempts)
select 1, 'task.completed', array[task_id], array[1] from holdfast.effect;
insert into holdfast.note (task_id, attempt, tenant_id, kind, detail)
select (select min(task_id) from holdfast.body), 1, 1, 'log',
  '{"message": "a line of a log"}' from generate_series(1, 10000)
"""
_QUEUED = """
insert into holdfast.live (task_id, tenant_id, lane_id, policy_id, priority, max_retries, max_losses, state,
  due_at, is_retrying)
select b.task_id, 1, b.lane_id, b.policy_id, b.priority, 3, 3, case when b.task_id % 20000 = 1 then 'w' else 'q' end,
  case when b.task_id % 20000 = 1 then now() + interval '1 day' end, b.task_id % 20000 = 1
from holdfast.body b
where b.task_id >= $1 and b.task_id < $2
"""
_REST = """
insert into holdfast.schedule (tenant_id, name, origin, kind, target, every_seconds, timezone, overlap, missed,
  max_waiting, input)
select 1, 'every' || n, 'api', 'a', 'shop.queue1_1', 60, 'UTC', 'skip', 'latest', 10, '{}' from generate_series(1,
  200) n;
insert into holdfast.slot (schedule_id, slot_at, tenant_id, state, cause)
select schedule_id, now() - n * interval '1 minute', 1, 'k', 'overlap'
from holdfast.schedule
cross join generate_series(1, 500) n;
insert into holdfast.campaign (tenant_id, name, fingerprint, state, reason, started_by, ended_at, needs_approval,
  canary, at_once,
  upto_id, lane_ids, total)
select 1, 'campaign' || n, 'fault' || n, 'completed', 'mended', 'somebody', now(), false, 1, 10, 1,
  array(select lane_id from lanes), 10
from generate_series(1, 2000) n;
insert into holdfast.token (token_id, tenant_id, name, role, digest, created_by)
select lpad(to_hex(n), 12, '0'), 1, 'token' || n, 'viewer', decode(repeat('00', 32), 'hex'),
  'somebody' from generate_series(1, 500) n;
insert into holdfast.member (tenant_id, issuer, subject, role, added_by)
select 1, 'google', 'subject' || n, 'viewer', 'somebody' from generate_series(1, 500) n;
insert into holdfast.authority (tenant_id, effect, action, is_allowed, actor)
select 1, 'mail.send', 'shop.' || n, true, 'somebody' from generate_series(1, 500) n;
insert into holdfast.webhook (tenant_id, name, url, secret, cursor, created_by, paused_at, paused_by)
select 1, 'hook' || n, 'http://127.0.0.1:9/', 'x', '0:0', 'somebody', holdfast.instant(), 'somebody'
from generate_series(1, 100) n;
insert into holdfast.dataset (tenant_id, name, place) select 1, 'table' || n, 'public' from generate_series(1, 100) n;
insert into holdfast.dataset_generation (tenant_id, dataset_id, version, state, columns, types, key)
select 1, dataset_id, n, case when n = 3 then 'c' else 'd' end, '{id}', '{bigint}', '{id}'
from holdfast.dataset
cross join generate_series(1, 3) n;
insert into holdfast.launch (task_id, attempt, tenant_id, launcher, token_hashes, token_expires_at, launching_until)
select task_id, 1, 1, 'pods', '{}', now(), now() from holdfast.live order by task_id limit 1000;
insert into holdfast.quota (tenant_id, queue_id, retries_max, window_seconds)
select 1, queue_id, 100, 60 from holdfast.queue where name like 'queue%'
"""

_IDS = """
select (select min(task_id) from holdfast.note) as task_id,
  (select min(run_id) from holdfast.run where tenant_id = 1 and state = 'c') as run_id,
  (select min(task_id) from holdfast.dead_letter where tenant_id = 1) as failed_id,
  (select (min(task_id) + max(task_id)) / 2 / 5 * 5 from holdfast.effect where tenant_id = 1) as effect_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What was written, some ids for requests, and the ids of the small tenants."""

    tasks: int
    queued: int
    nodes: int
    task_id: int
    run_id: int
    failed_id: int
    effect_id: int
    few: int = 0
    nobody: int = 0


async def fill_history(arena: Arena, client: Client, *, tasks: int, queued: int) -> History:
    """Write a history of `tasks` finished tasks and nodes, and `queued` queued ones."""
    async with arena.connection() as connection:
        beside = await make_neighbours(client.engine.database, connection)
    await client.start_many(a_chain(NODES), [{"base": 0}] * min(OPEN_RUNS, tasks // HUNDRED))
    async with arena.connection() as connection:
        await connection.execute("set statement_timeout = 0; set synchronous_commit = off")
        await connection.execute(_NAMES)
        nodes = tasks // NODES_PART
        for statements, sequence, ids in (
            ((_TASKS, _COMPLETED, _ENDED), "task_id", tasks - nodes),
            ((_RUNS, _NODES), "span", nodes),
            ((), "", 0),
            ((_TASKS, _QUEUED), "task_id", queued),
        ):
            if not statements:
                await connection.execute(_AFTER)
                continue
            first = await _span(connection, sequence, ids)
            for statement in statements:
                await connection.execute(statement, first, first + ids)
        await connection.execute(_REST)
        await beside.write(connection)
        # Most of the history has no events, so the counters must be recomputed.
        await connection.execute("select holdfast.recount_completed()")
        # As autovacuum leaves a database that has existed for a while.
        await connection.execute("vacuum (analyze)")
        ids = await connection.fetchrow(_IDS)
    return History(tasks=tasks, queued=queued, nodes=NODES, few=beside.few, nobody=beside.nobody, **dict(ids))


async def _span(connection: Any, sequence: str, ids: int) -> int:
    """Reserve ids; return the first one."""
    last = await connection.fetchval(f"select last_value from holdfast.{sequence}")
    first = int(last // HUNDRED + 1) * HUNDRED
    await connection.execute("select setval($1::text::regclass, $2::bigint)", f"holdfast.{sequence}", first + ids)
    return first
