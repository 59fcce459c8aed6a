-- name: a_body_stays_with_its_tenant() -> rows
-- Task, lane and policy belong to one tenant (T1).
select b.task_id
from holdfast.body b
left join holdfast.lane l on l.lane_id = b.lane_id
left join holdfast.policy p on p.policy_id = b.policy_id
where l.tenant_id is distinct from b.tenant_id or p.tenant_id is distinct from b.tenant_id;

-- name: a_live_task_stays_with_its_body() -> rows
-- The live row has the same tenant, lane and policy as the task's body (T1).
select t.task_id
from holdfast.live t
join holdfast.body b on b.task_id = t.task_id
where (t.tenant_id, t.lane_id, t.policy_id) is distinct from (b.tenant_id, b.lane_id, b.policy_id);

-- name: an_ended_task_stays_with_its_body() -> rows
-- The ended row has the same tenant, lane and policy as the task's body (T1).
select e.task_id
from holdfast.ended e
join holdfast.body b on b.task_id = e.task_id
where (e.tenant_id, e.lane_id, e.policy_id) is distinct from (b.tenant_id, b.lane_id, b.policy_id);

-- name: history_stays_with_its_tenant() -> rows
-- Attempts and failures belong to the tenant of their task (T1).
select a.task_id
from holdfast.attempt a
join holdfast.body b on b.task_id = a.task_id
where a.tenant_id <> b.tenant_id
union all
select f.task_id
from holdfast.failure f
join holdfast.body b on b.task_id = f.task_id
where f.tenant_id <> b.tenant_id;

-- name: an_effect_stays_with_its_tenant() -> rows
-- Effects and steps belong to the tenant of their task (T1).
select acted.task_id
from (
  select e.task_id, e.tenant_id
  from holdfast.effect e
  union all
  select s.task_id, s.tenant_id
  from holdfast.step s
) acted
join (
  select t.task_id, t.tenant_id
  from holdfast.live t
  union all
  select d.task_id, d.tenant_id
  from holdfast.ended d
  union all
  select a.task_id, a.tenant_id
  from holdfast.attempt a
) known on known.task_id = acted.task_id
where known.tenant_id <> acted.tenant_id;

-- name: notes_stay_with_their_tenant() -> rows
-- The notes of an attempt belong to the tenant of its task (T1).
select n.task_id, n.attempt
from holdfast.note n
join holdfast.body b on b.task_id = n.task_id
where n.tenant_id <> b.tenant_id;

-- name: workers_stay_with_their_tenant() -> rows
-- A running attempt belongs to a worker of its own tenant (T1).
select t.task_id, t.worker_id
from holdfast.live t
join holdfast.worker w on w.worker_id = t.worker_id
where w.tenant_id <> t.tenant_id;

-- name: runs_stay_with_their_tenant() -> rows
-- Runs, their nodes and the runs they start belong to one tenant (T1).
select n.run_id
from holdfast.node n
join holdfast.run r on r.run_id = n.run_id
where n.tenant_id <> r.tenant_id
union all
select c.run_id
from holdfast.run c
join holdfast.run r on r.run_id = c.parent_run_id
where c.tenant_id <> r.tenant_id;

-- name: snapshots_stay_with_their_tenant() -> rows
-- The lanes and policies of a snapshot, and the snapshots it starts, belong to its tenant (T1).
select s.snapshot_id
from holdfast.snapshot s
cross join lateral unnest(s.lane_ids, s.policy_ids, s.child_ids) as named (lane_id, policy_id, child_id)
left join holdfast.lane l on l.lane_id = named.lane_id
left join holdfast.policy p on p.policy_id = named.policy_id
left join holdfast.snapshot c on c.snapshot_id = named.child_id
where (l.lane_id is not null and l.tenant_id <> s.tenant_id)
  or (p.policy_id is not null and p.tenant_id <> s.tenant_id)
  or (c.snapshot_id is not null and c.tenant_id <> s.tenant_id);

-- name: slots_stay_with_their_tenant() -> rows
-- A schedule, its slots and what they fired belong to one tenant (T1).
select f.schedule_id, f.slot_at
from holdfast.slot f
left join holdfast.body d on d.task_id = f.task_id
left join holdfast.run r on r.run_id = f.run_id
where f.tenant_id <> coalesce(d.tenant_id, r.tenant_id);

-- name: a_dead_letter_stays_with_its_tenant() -> rows
-- A dead letter and its failure belong to one tenant (T1).
select d.dead_letter_id
from holdfast.dead_letter d
join holdfast.failure f on f.task_id = d.task_id and f.attempt = d.attempts
where f.tenant_id <> d.tenant_id;

-- name: campaigns_stay_with_their_tenant() -> rows
-- The dead letters of a campaign belong to its tenant (T1).
select d.dead_letter_id, c.campaign_id
from holdfast.dead_letter d
join holdfast.campaign c on c.campaign_id = d.campaign_id
where c.tenant_id <> d.tenant_id
union all
select l.dead_letter_id, l.campaign_id
from holdfast.campaign_letter l
join holdfast.campaign c on c.campaign_id = l.campaign_id
join holdfast.dead_letter d on d.dead_letter_id = l.dead_letter_id
where c.tenant_id <> d.tenant_id;

-- name: datasets_stay_with_their_tenant() -> rows
-- Everything staged for, committed to and building a generation belongs to its tenant (T1).
select s.task_id, s.generation_id
from holdfast.dataset_stage s
join holdfast.dataset_generation g on g.generation_id = s.generation_id
where g.tenant_id <> s.tenant_id
union all
select c.task_id, c.generation_id
from holdfast.dataset_commit c
join holdfast.dataset_generation g on g.generation_id = c.generation_id
where g.tenant_id <> c.tenant_id
union all
select b.task_id, b.generation_id
from holdfast.dataset_build b
join holdfast.dataset_generation g on g.generation_id = b.generation_id
join holdfast.body t on t.task_id = b.task_id
where g.tenant_id <> t.tenant_id;

-- name: every_table_has_row_level_security() -> rows
-- Row-level security is forced on every table, with a policy for the engine, and one for the tenant if its rows have
-- one; the tenant role has no direct access to partitions (T2).
select c.relname::text as name
from pg_class c
where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
  and not (
    c.relrowsecurity and c.relforcerowsecurity
    and exists (select from pg_policy p where p.polrelid = c.oid and p.polname = 'engine')
    and (
      exists (select from pg_policy p where p.polrelid = c.oid and p.polname = 'tenant')
      or not exists (
        select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped
      )
      or not exists (select from pg_roles r where r.rolname = 'holdfast_tenant')
    )
  )
union all
select c.relname::text
from pg_class c
join pg_roles r on r.rolname = 'holdfast_tenant'
where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'r' and c.relispartition
  and has_table_privilege(r.oid, c.oid, 'select, insert, update, delete, truncate');

-- name: no_rule_bypasses_row_level_security() -> rows
-- The tenant role is no superuser, bypasses no policy, owns nothing here and may not log in; it cannot rewrite the
-- audit log or events; views run with the privileges of the caller (T2).
select r.rolname::text as name
from pg_roles r
where r.rolname = 'holdfast_tenant' and (r.rolsuper or r.rolbypassrls or r.rolcanlogin or r.rolcreaterole or r.rolcreatedb)
union all
select c.relname::text
from pg_class c
join pg_roles r on r.rolname = 'holdfast_tenant'
where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p', 'v', 'S')
  and (
    pg_has_role(r.oid, c.relowner, 'member')
    or (c.relname in ('audit', 'event') and has_table_privilege(r.oid, c.oid, 'update, delete, truncate'))
    or (c.relkind in ('r', 'p', 'v') and has_table_privilege(r.oid, c.oid, 'truncate, trigger, references'))
    or (c.relkind = 'S' and has_sequence_privilege(r.oid, c.oid, 'update'))
  )
union all
select c.relname::text
from pg_class c
where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'v'
  and not ('security_invoker=true' = any(coalesce(c.reloptions, '{}')));
