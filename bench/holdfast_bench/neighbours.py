"""Small tenants next to a large one: their lists must find few rows without scanning those of the large tenant.

One tenant has three rows of each kind, all older than those of the large tenant; the other has none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.engine.identity.tenants import create_tenant
from holdfast.engine.maintenance.retention import begin_today
from holdfast.store.database import Database

FEW, NOBODY = "few", "nobody"
ROWS = 3
FEW_TAG = "small"

# `$1` is the tenant, `$2` the first of its task ids, three for each state; `$3` the first of the ids of three runs.
_FEW = f"""
with queue as (
  insert into holdfast.queue (tenant_id, name) values ($1, 'small') returning queue_id
),
lane as (
  insert into holdfast.lane (tenant_id, queue_id, action)
  select $1, queue_id, 'small.act' from queue returning lane_id
),
policy as (
  insert into holdfast.policy (tenant_id, digest, max_retries, max_losses, content)
  values ($1, 'small', 3, 3, '{{}}') returning policy_id
),
worker as (
  insert into holdfast.worker (tenant_id, name, actions, slots)
  values ($1, 'small', '{{small.act}}', 10) returning worker_id
),
tasks as materialized (
  select $2::bigint + n as task_id, n / {ROWS} as kind, lane_id, policy_id, worker_id
  from generate_series(0, {5 * ROWS - 1}) n
  cross join lane
  cross join policy
  cross join worker
),
bodies as (
  insert into holdfast.body (task_id, created_at, tenant_id, lane_id, policy_id, priority, input, tags)
  select task_id, now(), $1, lane_id, policy_id, 5, '{{}}', '{{{FEW_TAG}}}' from tasks where kind < 4
),
live as (
  insert into holdfast.live (task_id, tenant_id, lane_id, policy_id, priority, max_retries, max_losses, state, due_at,
    worker_id, lease_token, attempt, started_at, lease_expires_at)
  select task_id, $1, lane_id, policy_id, 5, 3, 3, ('{{q,w,r}}'::"char"[])[kind + 1],
    case kind when 1 then now() + interval '1 day' end, case kind when 2 then worker_id end,
    case kind when 2 then gen_random_uuid() end, kind / 2, now(), case kind when 2 then now() + interval '1 day' end
  from tasks
  where kind < 3
),
completed as (
  insert into holdfast.attempt (task_id, started_at, ended_at, attempt, tenant_id, state, lease_token, output)
  select task_id, now(), now(), 1, $1, 'c', gen_random_uuid(), 'null' from tasks where kind = 3
),
ended as (
  insert into holdfast.ended (task_id, tenant_id, lane_id, policy_id, state, attempt, retries, losses, max_retries,
    max_losses, generation, priority, created_at, ended_at, input, tags, has_letter)
  select task_id, $1, lane_id, policy_id, 'f', 1, 0, 0, 3, 3, 1, 5, now(), now(), '{{}}', '{{{FEW_TAG}}}', true
  from tasks
  where kind = 4
),
letters as (
  insert into holdfast.dead_letter (tenant_id, task_id, source_id, lane_id, attempts, generation, fingerprint, cause,
    reason, state, disposition, actor)
  select $1, task_id, task_id::text, lane_id, 1, 1, 'small', 'budget', 'retries',
    (array['open', 'ignored', 'resolved'])[1 + task_id % {ROWS}], 'ignored', 'somebody'
  from tasks
  where kind = 4
),
effects as (
  insert into holdfast.effect (tenant_id, key, task_id, attempt, ordinal, generation, lease_token, name, digest, state,
    receipt, answered_at)
  select $1, task_id::text, task_id, 1, 0, 1, gen_random_uuid(), 'mail.send', '', 'd', 'null', now()
  from tasks
  where kind = 3
),
flow as (
  insert into holdfast.flow (tenant_id, name, version, digest, definition, nodes, upstreams, downstreams)
  select $1, 'small.flow', 1, 'small', '{{"nodes": [{{"name": "one", "action": "small.act"}}]}}', 1, '{{}}', '{{}}'
  returning flow_id
),
snapshot as (
  insert into holdfast.snapshot (tenant_id, flow_id, digest, lane_ids, policy_ids, priorities, child_ids)
  select $1, flow_id, 'small', array[lane_id], array[policy_id], '{{5}}', '{{0}}'
  from flow
  cross join lane
  cross join policy
  returning snapshot_id
)
insert into holdfast.run (run_id, tenant_id, snapshot_id, nodes, pending, active, state, ended_at, tags, input, failed)
select $3::bigint + 10 * n, $1, snapshot_id, 1, (n = 0)::int, 0, ('{{o,c,f}}'::"char"[])[n + 1],
  case when n > 0 then now() end, '{{{FEW_TAG}}}', '{{}}', (n = 2)::int
from generate_series(0, {ROWS - 1}) n
cross join snapshot
"""


class Neighbours(NamedTuple):
    """The ids of both tenants, and the first ids of the one with few rows."""

    few: int
    nobody: int
    task_id: int
    run_id: int

    async def write(self, connection: Any) -> None:
        """Write the rows of the tenant with few."""
        await connection.execute(_FEW, self.few, self.task_id, self.run_id)


async def make_neighbours(database: Database, connection: Any) -> Neighbours:
    """Create both tenants, and reserve their ids before any others are used."""
    few, nobody = [await create_tenant(database, name, actor="bench", reason="measure") for name in (FEW, NOBODY)]
    # The next maintenance pass does this once there are several tenants.
    await begin_today(database)
    last = await connection.fetchval("select max(nextval('holdfast.task_id')) from generate_series(1, 100)")
    run_id = await connection.fetchval("select holdfast.take_span(100)")
    return Neighbours(few.tenant_id, nobody.tenant_id, last - 99, run_id)
