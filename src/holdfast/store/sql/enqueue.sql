-- name: enqueue
-- Accept a batch of tasks of one lane and policy. Ids come from the sequence, in the order given, and are answered as
-- one array: a row for each would cost more than storing it.
with fresh as materialized (
  select nextval('holdfast.task_id') as task_id, input
  from unnest($8::bytea[]) as given (input)
),
bodies as (
  insert into holdfast.body (task_id, created_at, tenant_id, lane_id, policy_id, priority, tags, input)
  select task_id, holdfast.instant(), $1, $2, $3, $6, $9::text[], input
  from fresh
),
accepted as (
  insert into holdfast.live (task_id, tenant_id, lane_id, policy_id, max_retries, max_losses, priority, state, due_at)
  select task_id, $1, $2, $3, $4, $5, $6,
    case when $7 > 0 then 'w' else 'q' end::"char",
    case when $7 > 0 then holdfast.instant() + make_interval(secs => $7) end
  from fresh
  returning task_id
)
select array_agg(task_id)
from accepted;

-- name: enqueue_one
-- Accept one task. The same as a batch of one, without what a batch needs: measured, that is a sixteenth of the call.
with fresh as (
  insert into holdfast.body (task_id, created_at, tenant_id, lane_id, policy_id, priority, tags, input)
  values (nextval('holdfast.task_id'), holdfast.instant(), $1, $2, $3, $6, $9::text[], $8)
  returning task_id
)
insert into holdfast.live (task_id, tenant_id, lane_id, policy_id, max_retries, max_losses, priority, state, due_at)
select task_id, $1, $2, $3, $4, $5, $6,
  case when $7 > 0 then 'w' else 'q' end::"char",
  case when $7 > 0 then holdfast.instant() + make_interval(secs => $7) end
from fresh
returning task_id;

-- name: enqueue_keyed
-- Accept tasks under idempotency keys: only keys nobody used yet become tasks. Equal keys in one batch become one.
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
fresh as materialized (
  select claimed.task_id, claimed.key, given.input
  from claimed
  join given on given.key = claimed.key
),
bodies as (
  insert into holdfast.body (task_id, created_at, tenant_id, lane_id, policy_id, priority, tags, input, key)
  select task_id, holdfast.instant(), $1, $2, $3, $6, $9::text[], input, key
  from fresh
)
insert into holdfast.live (task_id, tenant_id, lane_id, policy_id, max_retries, max_losses, priority, state, due_at)
select task_id, $1, $2, $3, $4, $5, $6,
  case when $7 > 0 then 'w' else 'q' end::"char",
  case when $7 > 0 then holdfast.instant() + make_interval(secs => $7) end
from fresh
returning task_id;

-- name: find_keys
-- Which task each key stands for, and whether it was asked for with the same body.
select i.key, i.task_id,
  i.digest = sha256(convert_to($4 || E'\n' || convert_from(g.input, 'utf8')::jsonb::text, 'utf8')) as is_same
from unnest($2::text[], $3::bytea[]) with ordinality as g (key, input, n)
join holdfast.idempotency i on i.tenant_id = $1 and i.key = g.key
order by g.n;
