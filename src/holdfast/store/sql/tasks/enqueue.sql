-- name: enqueue
-- Insert a batch of tasks of one lane and policy. Ids come from the sequence, in the order of the inputs, and are
-- returned as one array: one row each would cost more than storing the task. Inputs are an array, or lines of one text
-- ($10), because drivers process every element of an array more than once.
with new_tasks as materialized (
  select nextval('holdfast.task_id') as task_id, input
  from (
    select input from unnest($8::bytea[]) as given (input)
    union all
    select convert_to(line, 'UTF8') from string_to_table($10::text, E'\n') as given (line)
  ) given
),
bodies as (
  insert into holdfast.body (task_id, created_at, tenant_id, lane_id, policy_id, priority, tags, input)
  select task_id, holdfast.instant(), $1, $2, $3, $6, $9::text[], input
  from new_tasks
),
accepted as (
  insert into holdfast.live (task_id, tenant_id, lane_id, policy_id, max_retries, max_losses, priority, state, due_at)
  select task_id, $1, $2, $3, $4, $5, $6,
    case when $7 > 0 then 'w' else 'q' end::"char",
    case when $7 > 0 then holdfast.instant() + make_interval(secs => $7) end
  from new_tasks
)
select array_agg(task_id)
from new_tasks;

-- name: enqueue_one
-- Insert one task. Equal to a batch of one without the overhead of a batch, which measured a sixteenth of the call.
with inserted as (
  insert into holdfast.body (task_id, created_at, tenant_id, lane_id, policy_id, priority, tags, input)
  values (nextval('holdfast.task_id'), holdfast.instant(), $1, $2, $3, $6, $9::text[], $8)
  returning task_id
)
insert into holdfast.live (task_id, tenant_id, lane_id, policy_id, max_retries, max_losses, priority, state, due_at)
select task_id, $1, $2, $3, $4, $5, $6,
  case when $7 > 0 then 'w' else 'q' end::"char",
  case when $7 > 0 then holdfast.instant() + make_interval(secs => $7) end
from inserted
returning task_id;

-- name: enqueue_copy
-- Insert one task that is a copy of another ($10).
with inserted as (
  insert into holdfast.body (task_id, created_at, tenant_id, lane_id, policy_id, priority, tags, input, original_task_id)
  values (nextval('holdfast.task_id'), holdfast.instant(), $1, $2, $3, $6, $9::text[], $8, $10)
  returning task_id
)
insert into holdfast.live (task_id, tenant_id, lane_id, policy_id, max_retries, max_losses, priority, state, due_at)
select task_id, $1, $2, $3, $4, $5, $6,
  case when $7 > 0 then 'w' else 'q' end::"char",
  case when $7 > 0 then holdfast.instant() + make_interval(secs => $7) end
from inserted
returning task_id;

-- name: copied_task
-- Return the request of a plain task, for a copy of it. Nodes have no body, so they are not found.
select b.lane_id, b.policy_id, b.priority, b.tags, b.input
from holdfast.body b
where b.task_id = $1 and b.tenant_id = $2
union all
select e.lane_id, e.policy_id, e.priority, e.tags, e.input
from holdfast.ended e
where e.task_id = $1 and e.tenant_id = $2 and e.run_id is null and e.input is not null
limit 1;

-- name: enqueue_keyed
-- Insert tasks under idempotency keys: only unused keys become tasks. Equal keys in one batch become one task. A copy
-- names its original ($12).
with given as materialized (
  select distinct on (key) key, input,
    sha256(convert_to($11 || E'\n' || convert_from(input, 'utf8')::jsonb::text, 'utf8')) as digest
  from unnest($8::bytea[], $10::text[]) as g (input, key)
),
claimed as (
  insert into holdfast.idempotency (tenant_id, key, task_id, digest)
  select $1, key, nextval('holdfast.task_id'), digest
  from given
  on conflict (tenant_id, key) do nothing
  returning key, task_id
),
new_tasks as materialized (
  select claimed.task_id, claimed.key, given.input
  from claimed
  join given on given.key = claimed.key
),
bodies as (
  insert into holdfast.body (
    task_id, created_at, tenant_id, lane_id, policy_id, priority, tags, input, key, original_task_id
  )
  select task_id, holdfast.instant(), $1, $2, $3, $6, $9::text[], input, key, $12::bigint
  from new_tasks
)
insert into holdfast.live (task_id, tenant_id, lane_id, policy_id, max_retries, max_losses, priority, state, due_at)
select task_id, $1, $2, $3, $4, $5, $6,
  case when $7 > 0 then 'w' else 'q' end::"char",
  case when $7 > 0 then holdfast.instant() + make_interval(secs => $7) end
from new_tasks
returning task_id;

-- name: find_keys
-- Return the task of each key, and whether it was requested with the same input and action.
select i.key, i.task_id,
  i.digest = sha256(convert_to($4 || E'\n' || convert_from(g.input, 'utf8')::jsonb::text, 'utf8')) as is_same
from unnest($2::text[], $3::bytea[]) with ordinality as g (key, input, n)
join holdfast.idempotency i on i.tenant_id = $1 and i.key = g.key
order by g.n;
