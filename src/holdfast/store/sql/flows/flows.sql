-- name: ensure_flow
-- Insert one version of a flow. An existing version is not changed: the caller compares digests.
insert into holdfast.flow (tenant_id, name, version, digest, definition, nodes, upstreams, downstreams)
values ($1, $2, $3, $4, $5::text::jsonb, $6, $7::int[], $8::int[])
on conflict (tenant_id, name, version) do nothing;

-- name: find_flow
-- Return one version of a flow, or its newest.
select f.flow_id, f.version, f.digest
from holdfast.flow f
where f.tenant_id = $1 and f.name = $2 and ($3::int is null or f.version = $3)
order by f.version desc
limit 1;

-- name: read_flow
-- Return one version of a flow with its definition, or its newest.
select f.flow_id, f.name, f.version, f.digest, f.created_at, f.definition::text as definition
from holdfast.flow f
where f.tenant_id = $1 and f.name = $2 and ($3::int is null or f.version = $3)
order by f.version desc
limit 1;

-- name: list_flows
-- Return every version of every flow, newest first, with its number of open runs.
select f.flow_id, f.name, f.version, f.nodes, f.created_at,
  (
    select count(*)::int
    from holdfast.run r
    join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
    where s.flow_id = f.flow_id and r.state = 'o'
  ) as open_runs
from holdfast.flow f
where f.tenant_id = $1
order by f.name, f.version desc
limit $2;

-- name: newest_snapshot
-- Return the snapshot that a run of a flow given only by name executes: the newest version, as last declared or
-- started.
select s.snapshot_id
from holdfast.flow f
join holdfast.snapshot s on s.flow_id = f.flow_id
where f.tenant_id = $1 and f.name = $2 and ($3::int is null or f.version = $3)
order by f.version desc, s.snapshot_id desc
limit 1;

-- name: flow_names
-- Return flow names, for the advice about an unknown name.
select distinct f.name
from holdfast.flow f
where f.tenant_id = $1
order by f.name
limit $2;

-- name: ensure_snapshot
-- Intern a definition with the rules of its nodes.
insert into holdfast.snapshot (tenant_id, flow_id, digest, lane_ids, policy_ids, priorities, child_ids)
values ($1, $2, $3, $4::int[], $5::int[], $6::smallint[], $7::int[])
on conflict (flow_id, digest) do nothing;

-- name: find_snapshot
-- Return a snapshot by its content.
select snapshot_id
from holdfast.snapshot
where flow_id = $1 and digest = $2;

-- name: read_snapshots
-- Return snapshots with their definitions.
select s.snapshot_id, s.flow_id, s.tenant_id, convert_to(f.definition::text, 'utf8') as definition, s.lane_ids, s.policy_ids, s.priorities,
  s.child_ids
from holdfast.snapshot s
join holdfast.flow f on f.flow_id = s.flow_id
where s.snapshot_id = any($1::int[]);
