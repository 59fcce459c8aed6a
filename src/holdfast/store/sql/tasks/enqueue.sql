-- name: enqueue(tenant_id, lane_id, policy_id, max_retries, max_losses, priority, delay_seconds, inputs?, tags?,
--   input_lines?) -> rows
-- Insert a batch of tasks of one lane and policy. Ids come from the sequence, in the order of the inputs, and are
-- returned as one array: one row each would cost more than storing the task. Inputs are an array, or lines of one text
-- (@input_lines), because drivers process every element of an array more than once.
with new_tasks as materialized (
  select nextval('holdfast.task_id') as task_id, input
  from (
    select input from unnest(@inputs::bytea[]) as given (input)
    union all
    select convert_to(line, 'UTF8') from string_to_table(@input_lines::text, E'\n') as given (line)
  ) given
),
bodies as (
  insert into holdfast.body (task_id, created_at, tenant_id, lane_id, policy_id, priority, tags, input)
  select task_id, holdfast.instant(), @tenant_id, @lane_id, @policy_id, @priority, @tags::text[], input
  from new_tasks
),
accepted as (
  insert into holdfast.live (task_id, tenant_id, lane_id, policy_id, max_retries, max_losses, priority, state, due_at)
  select task_id, @tenant_id, @lane_id, @policy_id, @max_retries, @max_losses, @priority,
    case when @delay_seconds::double precision > 0 then 'w' else 'q' end::"char",
    case when @delay_seconds > 0 then holdfast.instant() + make_interval(secs => @delay_seconds) end
  from new_tasks
)
select array_agg(task_id)
from new_tasks;

-- name: enqueue_one(tenant_id, lane_id, policy_id, max_retries, max_losses, priority, delay_seconds, input, tags?) ->
--   value prepared
-- Insert one task. Equal to a batch of one without the overhead of a batch, which measured a sixteenth of the call.
with inserted as (
  insert into holdfast.body (task_id, created_at, tenant_id, lane_id, policy_id, priority, tags, input)
  values (nextval('holdfast.task_id'), holdfast.instant(), @tenant_id, @lane_id, @policy_id, @priority, @tags::text[], @input)
  returning task_id
)
insert into holdfast.live (task_id, tenant_id, lane_id, policy_id, max_retries, max_losses, priority, state, due_at)
select task_id, @tenant_id, @lane_id, @policy_id, @max_retries, @max_losses, @priority,
  case when @delay_seconds::double precision > 0 then 'w' else 'q' end::"char",
  case when @delay_seconds > 0 then holdfast.instant() + make_interval(secs => @delay_seconds) end
from inserted
returning task_id;

-- name: enqueue_copy(tenant_id, lane_id, policy_id, max_retries, max_losses, priority, delay_seconds, input, tags?,
--   original_task_id) -> row
-- Insert one task that is a copy of another (@original_task_id).
with inserted as (
  insert into holdfast.body (task_id, created_at, tenant_id, lane_id, policy_id, priority, tags, input, original_task_id)
  values (nextval('holdfast.task_id'), holdfast.instant(), @tenant_id, @lane_id, @policy_id, @priority, @tags::text[], @input, @original_task_id)
  returning task_id
)
insert into holdfast.live (task_id, tenant_id, lane_id, policy_id, max_retries, max_losses, priority, state, due_at)
select task_id, @tenant_id, @lane_id, @policy_id, @max_retries, @max_losses, @priority,
  case when @delay_seconds::double precision > 0 then 'w' else 'q' end::"char",
  case when @delay_seconds > 0 then holdfast.instant() + make_interval(secs => @delay_seconds) end
from inserted
returning task_id;

-- name: read_task_to_copy(task_id, tenant_id) -> row?
-- nullable: tags
-- Return the request of a plain task, for a copy of it. Nodes have no body, so they are not found.
select b.lane_id, b.policy_id, b.priority, b.tags, b.input
from holdfast.body b
where b.task_id = @task_id and b.tenant_id = @tenant_id
union all
select e.lane_id, e.policy_id, e.priority, e.tags, e.input
from holdfast.ended e
where e.task_id = @task_id and e.tenant_id = @tenant_id and e.run_id is null and e.input is not null
limit 1;

-- name: enqueue_keyed(tenant_id, lane_id, policy_id, max_retries, max_losses, priority, delay_seconds, inputs, tags?,
--   keys, action, original_task_id?) -> rows
-- Insert tasks under idempotency keys: only unused keys become tasks. Equal keys in one batch become one task. A copy
-- names its original (@original_task_id).
with given as materialized (
  select distinct on (key) key, input,
    sha256(convert_to(@action || E'\n' || convert_from(input, 'utf8')::jsonb::text, 'utf8')) as digest
  from unnest(@inputs::bytea[], @keys::text[]) as g (input, key)
),
claimed as (
  insert into holdfast.idempotency (tenant_id, key, task_id, digest)
  select @tenant_id, key, nextval('holdfast.task_id'), digest
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
  select task_id, holdfast.instant(), @tenant_id, @lane_id, @policy_id, @priority, @tags::text[], input, key, @original_task_id::bigint
  from new_tasks
)
insert into holdfast.live (task_id, tenant_id, lane_id, policy_id, max_retries, max_losses, priority, state, due_at)
select task_id, @tenant_id, @lane_id, @policy_id, @max_retries, @max_losses, @priority,
  case when @delay_seconds::double precision > 0 then 'w' else 'q' end::"char",
  case when @delay_seconds > 0 then holdfast.instant() + make_interval(secs => @delay_seconds) end
from new_tasks
returning task_id;

-- name: find_keys(tenant_id, keys, inputs, action) -> rows
-- Return the task of each key, and whether it was requested with the same input and action.
select i.key, i.task_id,
  i.digest = sha256(convert_to(@action || E'\n' || convert_from(g.input, 'utf8')::jsonb::text, 'utf8')) as is_same
from unnest(@keys::text[], @inputs::bytea[]) with ordinality as g (key, input, n)
join holdfast.idempotency i on i.tenant_id = @tenant_id and i.key = g.key
order by g.n;
