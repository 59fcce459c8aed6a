-- The priority that an action was declared with, for those who know only its name; and that a worker was asked to drain,
-- which outlasts a silence. Workers of before write neither: their actions have the usual priority, and a drained one of
-- theirs that was silent comes back active, as it did.
alter table holdfast.action add column priority smallint not null default 5;
alter table holdfast.worker add column drained_at timestamptz;

-- As before, but for the priority: what the caller says, else what a worker declared, else 5.
create or replace function holdfast.enqueue(
  action text,
  input jsonb default '{}',
  queue text default null,
  priority int default null,
  delay interval default null,
  key text default null,
  tags text[] default null,
  tenant text default 'default'
) returns text language plpgsql as $$
#variable_conflict use_column
declare
  in_tenant int := (select t.tenant_id from holdfast.tenant t where t.name = tenant);
  body bytea := convert_to(input::text, 'utf8');
  digest bytea := sha256(convert_to(enqueue.action || E'\n' || input::text, 'utf8'));
  due timestamptz := case when delay > interval '0' then holdfast.instant() + delay end;
  in_queue text;
  in_policy int;
  in_priority int;
  in_lane int;
  rules holdfast.policy;
  fresh bigint;
  known holdfast.idempotency;
begin
  if in_tenant is null then
    raise exception 'There is no tenant %.', tenant using errcode = '22023', hint = 'tenant_not_found';
  elsif enqueue.action !~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$' or coalesce(queue, 'x') !~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$' then
    raise exception 'Action and queue names are letters, digits and _.:-, at most 128.' using errcode = '22023', hint = 'invalid_name';
  elsif jsonb_typeof(input) <> 'object' then
    raise exception 'The input must be a JSON object.' using errcode = '22023', hint = 'invalid_input';
  elsif octet_length(body) > 1048576 then
    raise exception 'The input has more than 1048576 bytes.' using errcode = '22023', hint = 'payload_too_large';
  elsif priority not between 0 and 9 then
    raise exception 'The priority must be from 0 to 9.' using errcode = '22023', hint = 'invalid_priority';
  elsif key is not null and (btrim(key) = '' or length(key) > 256) then
    raise exception 'A key has 1 to 256 characters and is not blank.' using errcode = '22023', hint = 'invalid_key';
  end if;

  if key is not null then
    insert into holdfast.idempotency as i (tenant_id, key, task_id, digest)
    values (in_tenant, enqueue.key, nextval('holdfast.task_id'), digest)
    on conflict do nothing
    returning i.task_id into fresh;
    if fresh is null then
      select * into known from holdfast.idempotency i where i.tenant_id = in_tenant and i.key = enqueue.key;
      if known.digest <> digest then
        raise exception 'The key % already stands for task % with another input.', key, known.task_id
          using errcode = '23505', hint = 'idempotency_key_reused';
      end if;
      return known.task_id::text;
    end if;
  end if;

  select a.queue, a.policy_id, a.priority into in_queue, in_policy, in_priority
  from holdfast.action a
  where a.tenant_id = in_tenant and a.name = enqueue.action;
  if in_policy is null then
    insert into holdfast.policy (tenant_id, digest, max_retries, max_losses, content)
    values (in_tenant, '\x', 3, 3, '{}')
    on conflict do nothing;
    select p.policy_id into in_policy from holdfast.policy p where p.tenant_id = in_tenant and p.digest = '\x';
  end if;
  select * into rules from holdfast.policy p where p.policy_id = in_policy;
  in_queue := coalesce(enqueue.queue, in_queue, 'default');
  in_priority := coalesce(enqueue.priority, in_priority, 5);
  insert into holdfast.queue (tenant_id, name) values (in_tenant, in_queue) on conflict do nothing;
  insert into holdfast.lane (tenant_id, queue_id, action)
  select in_tenant, q.queue_id, enqueue.action
  from holdfast.queue q
  where q.tenant_id = in_tenant and q.name = in_queue
  on conflict do nothing;
  select l.lane_id into in_lane
  from holdfast.lane l
  join holdfast.queue q on q.queue_id = l.queue_id
  where l.tenant_id = in_tenant and q.name = in_queue and l.action = enqueue.action;

  fresh := coalesce(fresh, nextval('holdfast.task_id'));
  insert into holdfast.body (task_id, created_at, tenant_id, lane_id, policy_id, priority, tags, key, input)
  values (fresh, holdfast.instant(), in_tenant, in_lane, rules.policy_id, in_priority, tags, enqueue.key, body);
  insert into holdfast.live (task_id, tenant_id, lane_id, policy_id, max_retries, max_losses, priority, state, due_at)
  values (fresh, in_tenant, in_lane, rules.policy_id, rules.max_retries, rules.max_losses, in_priority,
    (case when due is null then 'q' else 'w' end)::"char", due);
  return fresh::text;
end $$;
