-- name: ensure_flow(tenant_id, name, version, digest, definition, nodes, upstreams, downstreams) -> nothing
-- Insert one version of a flow. An existing version is not changed: the caller compares digests.
insert into holdfast.flow (tenant_id, name, version, digest, definition, nodes, upstreams, downstreams)
values (@tenant_id, @name, @version, @digest, @definition::text::jsonb, @nodes, @upstreams::int[], @downstreams::int[])
on conflict (tenant_id, name, version) do nothing;

-- name: find_flow(tenant_id, name, version) -> row?
-- Return one version of a flow, or its newest.
select f.flow_id, f.version, f.digest
from holdfast.flow f
where f.tenant_id = @tenant_id and f.name = @name and (@version::int is null or f.version = @version)
order by f.version desc
limit 1;

-- name: read_flow(tenant_id, name, version?) -> row?
-- Return one version of a flow with its definition, or its newest.
select f.flow_id, f.name, f.version, f.digest, f.created_at, f.definition::text as definition
from holdfast.flow f
where f.tenant_id = @tenant_id and f.name = @name and (@version::int is null or f.version = @version)
order by f.version desc
limit 1;

-- name: list_flows(tenant_id, limit) -> rows
-- Return every version of every flow, newest first, with its number of open runs.
select f.flow_id, f.name, f.version, f.nodes, f.created_at,
  (
    select count(*)::int
    from holdfast.run r
    join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
    where s.flow_id = f.flow_id and r.state = 'o'
  ) as open_runs
from holdfast.flow f
where f.tenant_id = @tenant_id
order by f.name, f.version desc
limit @limit;

-- name: newest_snapshot(tenant_id, name, version?) -> value?
-- Return the snapshot that a run of a flow given only by name executes: the newest version, as last declared or
-- started.
select s.snapshot_id
from holdfast.flow f
join holdfast.snapshot s on s.flow_id = f.flow_id
where f.tenant_id = @tenant_id and f.name = @name and (@version::int is null or f.version = @version)
order by f.version desc, s.snapshot_id desc
limit 1;

-- name: flow_names(tenant_id, limit) -> rows
-- Return flow names, for the advice about an unknown name.
select distinct f.name
from holdfast.flow f
where f.tenant_id = @tenant_id
order by f.name
limit @limit;

-- name: ensure_snapshot(tenant_id, flow_id, digest, lane_ids, policy_ids, priorities, child_ids) -> nothing
-- Intern a definition with the rules of its nodes.
insert into holdfast.snapshot (tenant_id, flow_id, digest, lane_ids, policy_ids, priorities, child_ids)
values (@tenant_id, @flow_id, @digest, @lane_ids::int[], @policy_ids::int[], @priorities::smallint[], @child_ids::int[])
on conflict (flow_id, digest) do nothing;

-- name: find_snapshot(flow_id, digest) -> value?
-- Return a snapshot by its content.
select snapshot_id
from holdfast.snapshot
where flow_id = @flow_id and digest = @digest;

-- name: read_snapshots(snapshot_ids) -> rows
-- Return snapshots with their definitions.
select s.snapshot_id, s.flow_id, s.tenant_id, convert_to(f.definition::text, 'utf8') as definition, s.lane_ids, s.policy_ids, s.priorities,
  s.child_ids
from holdfast.snapshot s
join holdfast.flow f on f.flow_id = s.flow_id
where s.snapshot_id = any(@snapshot_ids::int[]);
