-- As before, but an action that no worker ever declared is refused, as the command line, HTTP and schedules refuse it:
-- queue, priority and retry policy of the task come from the declaration, and a mistyped name would wait for ever.
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
  in_tags text[];
  tag text;
  due timestamptz;
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
  elsif coalesce(enqueue.action, '') !~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$'
      or coalesce(queue, 'x') !~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$' then
    raise exception 'Action and queue names are letters, digits and _.:-, at most 128.' using errcode = '22023', hint = 'invalid_name';
  elsif jsonb_typeof(input) is distinct from 'object' then
    raise exception 'The input must be a JSON object.' using errcode = '22023', hint = 'invalid_input';
  elsif octet_length(body) > 1048576 then
    raise exception 'The input has more than 1048576 bytes.' using errcode = '22023', hint = 'payload_too_large';
  elsif octet_length(body) > 200
      and jsonb_path_exists(input, 'strict $.**{100} ? (@.type() == "object" || @.type() == "array")') then
    raise exception 'The input nests deeper than 100 levels.' using errcode = '22023', hint = 'payload_too_deep';
  elsif priority not between 0 and 9 then
    raise exception 'The priority must be from 0 to 9.' using errcode = '22023', hint = 'invalid_priority';
  elsif delay not between interval '0' and interval '3650 days' then
    raise exception 'The delay must be from 0 to 10 years.' using errcode = '22023', hint = 'invalid_delay';
  elsif key is not null and (btrim(key) = '' or length(key) > 256 or not holdfast.is_printable(key)) then
    raise exception 'A key has 1 to 256 printable characters and is not blank.' using errcode = '22023', hint = 'invalid_key';
  elsif cardinality(tags) > 20 then
    raise exception 'There are more than 20 tags.' using errcode = '22023', hint = 'invalid_tag';
  end if;

  foreach tag in array coalesce(tags, '{}') loop
    if tag is null or btrim(tag) = '' or length(tag) > 64 or not holdfast.is_printable(tag) then
      raise exception 'A tag has 1 to 64 printable characters and is not blank.' using errcode = '22023', hint = 'invalid_tag';
    elsif in_tags is null or tag <> all(in_tags) then
      in_tags := in_tags || tag;
    end if;
  end loop;
  if delay > interval '0' then
    due := holdfast.instant() + delay;
  end if;

  if key is not null then
    for asked in 1..3 loop
      insert into holdfast.idempotency as i (tenant_id, key, task_id, digest)
      values (in_tenant, enqueue.key, nextval('holdfast.task_id'), digest)
      on conflict do nothing
      returning i.task_id into fresh;
      exit when fresh is not null;
      select * into known from holdfast.idempotency i where i.tenant_id = in_tenant and i.key = enqueue.key;
      if known.digest <> digest then
        raise exception 'The key % already stands for task % with another input.', key, known.task_id
          using errcode = '23505', hint = 'idempotency_key_reused';
      elsif known.task_id is not null then
        return known.task_id::text;
      end if;
    end loop;
    if fresh is null then
      raise exception 'What the key % stands for is being deleted.', key
        using errcode = '40001', hint = 'idempotency_key_in_use';
    end if;
  end if;

  select a.queue, a.policy_id, a.priority into in_queue, in_policy, in_priority
  from holdfast.action a
  where a.tenant_id = in_tenant and a.name = enqueue.action;
  if not found then
    raise exception 'No worker ever declared the action %.', enqueue.action
      using errcode = '22023', hint = 'action_not_found',
        detail = 'Start a worker of its app once, or correct the name.';
  end if;
  select * into rules from holdfast.policy p where p.policy_id = in_policy;
  in_queue := coalesce(enqueue.queue, in_queue);
  in_priority := coalesce(enqueue.priority, in_priority);
  -- Names are looked up before they are inserted: a conflict draws an id all the same, and ids of lanes would run out.
  for asked in 1..2 loop
    select l.lane_id into in_lane
    from holdfast.lane l
    join holdfast.queue q on q.queue_id = l.queue_id
    where l.tenant_id = in_tenant and q.name = in_queue and l.action = enqueue.action;
    exit when in_lane is not null;
    insert into holdfast.queue (tenant_id, name)
    select in_tenant, in_queue
    where not exists (select from holdfast.queue k where k.tenant_id = in_tenant and k.name = in_queue)
    on conflict do nothing;
    insert into holdfast.lane (tenant_id, queue_id, action)
    select in_tenant, q.queue_id, enqueue.action
    from holdfast.queue q
    where q.tenant_id = in_tenant and q.name = in_queue
    on conflict do nothing;
  end loop;

  fresh := coalesce(fresh, nextval('holdfast.task_id'));
  insert into holdfast.body (task_id, created_at, tenant_id, lane_id, policy_id, priority, tags, key, input)
  values (fresh, holdfast.instant(), in_tenant, in_lane, rules.policy_id, in_priority, in_tags, enqueue.key, body);
  insert into holdfast.live (task_id, tenant_id, lane_id, policy_id, max_retries, max_losses, priority, state, due_at)
  values (fresh, in_tenant, in_lane, rules.policy_id, rules.max_retries, rules.max_losses, in_priority,
    (case when due is null then 'q' else 'w' end)::"char", due);
  return fresh::text;
end $$;
