-- What others read and call from SQL says and refuses the same as Python does.

-- As before, and tasks that failed or were canceled say what they are a copy of, too.
create or replace view holdfast.tasks with (security_invoker = true) as
select t.task_id::text as task_id, n.name as tenant, q.name as queue, l.action,
  case t.state when 'r' then 'running' when 'w' then case when t.is_retrying then 'failed' else 'queued' end else 'queued' end as state,
  t.attempt, t.retries as retry_count, t.max_retries, t.max_retries + 1 as max_attempts, t.losses as loss_count,
  t.max_losses, t.generation, t.priority, coalesce(b.created_at, r.created_at) as created_at, t.started_at,
  null::timestamptz as ended_at,
  case when t.is_retrying then t.due_at end as next_retry_at,
  case when not t.is_retrying then t.due_at end as due_at,
  t.worker_id, t.lease_expires_at, t.cancel_at, b.key, coalesce(b.tags, r.tags) as tags,
  b.original_task_id::text as original_execution,
  (select f.reason from holdfast.failure f where f.task_id = t.task_id order by f.attempt desc limit 1) as retry_reason,
  b.input, t.run_id::text as run_id, t.node_no
from holdfast.live t
join holdfast.lane l on l.lane_id = t.lane_id
join holdfast.queue q on q.queue_id = l.queue_id
join holdfast.tenant n on n.tenant_id = t.tenant_id
left join holdfast.body b on b.task_id = t.task_id
left join holdfast.run r on r.run_id = t.run_id
union all
select a.task_id::text, n.name, q.name, l.action, 'completed', a.attempt,
  (select count(*)::smallint from holdfast.failure f where f.task_id = a.task_id and f.generation = a.generation and f.state <> 'l'),
  p.max_retries, p.max_retries + 1,
  (select count(*)::smallint from holdfast.failure f where f.task_id = a.task_id and f.generation = a.generation and f.state = 'l'),
  p.max_losses, a.generation, coalesce(b.priority, w.priority), coalesce(b.created_at, w.created_at), a.started_at,
  a.ended_at, null, null, a.worker_id, null, null, b.key, coalesce(b.tags, w.tags), b.original_task_id::text,
  (select f.reason from holdfast.failure f where f.task_id = a.task_id order by f.attempt desc limit 1),
  b.input, w.run_id::text, w.node_no
from holdfast.attempt a
left join holdfast.body b on b.task_id = a.task_id
left join lateral (
  select w.run_id, w.node_no, w.item_no, r.created_at, r.tags, coalesce(r.priority, s.priorities[w.node_no + 1]) as priority,
    s.lane_ids[w.node_no + 1] as lane_id, s.policy_ids[w.node_no + 1] as policy_id, coalesce(m.generation, 1) as generation
  from holdfast.place(a.task_id) w
  join holdfast.run r on r.run_id = w.run_id
  join holdfast.snapshot s on s.snapshot_id = r.snapshot_id
  left join holdfast.node m on m.run_id = w.run_id and m.node_no = w.node_no
  where b.task_id is null
) w on true
join holdfast.lane l on l.lane_id = coalesce(b.lane_id, w.lane_id)
join holdfast.queue q on q.queue_id = l.queue_id
join holdfast.tenant n on n.tenant_id = a.tenant_id
join holdfast.policy p on p.policy_id = coalesce(b.policy_id, w.policy_id)
where a.state = 'c' and (b.task_id is not null or w.item_no is not null or a.generation = w.generation)
union all
select e.task_id::text, n.name, q.name, l.action, case e.state when 'f' then 'failed' else 'canceled' end, e.attempt,
  e.retries, e.max_retries, e.max_retries + 1, e.losses, e.max_losses, e.generation, e.priority,
  coalesce(r.created_at, e.created_at), null, e.ended_at, null, null, null, null, null, e.key, coalesce(e.tags, r.tags),
  (select b.original_task_id::text from holdfast.body b where b.task_id = e.task_id),
  (select f.reason from holdfast.failure f where f.task_id = e.task_id order by f.attempt desc limit 1),
  e.input, e.run_id::text, e.node_no
from holdfast.ended e
join holdfast.lane l on l.lane_id = e.lane_id
join holdfast.queue q on q.queue_id = l.queue_id
join holdfast.tenant n on n.tenant_id = e.tenant_id
left join holdfast.run r on r.run_id = e.run_id
union all
select s.task_id::text, n.name, q.name, l.action, s.state, s.attempt, 0::smallint, coalesce(p.max_retries, 0::smallint),
  coalesce(p.max_retries, 0) + 1, 0::smallint, coalesce(p.max_losses, 0::smallint), s.generation,
  coalesce(r.priority, c.priorities[s.node_no + 1]), r.created_at, s.started_at, s.ended_at, null, null, null, null, null,
  null, r.tags, null, null, null, r.run_id::text, s.node_no
from holdfast.run r
join holdfast.tenant n on n.tenant_id = r.tenant_id
join holdfast.snapshot c on c.snapshot_id = r.snapshot_id
join lateral holdfast.nodes_of(r.run_id) s on s.is_bare
left join holdfast.lane l on l.lane_id = s.lane_id
left join holdfast.queue q on q.queue_id = l.queue_id
left join holdfast.policy p on p.policy_id = s.policy_id;

-- Whether a text can be shown: no control or format characters, no spaces but the usual one, nothing of private use.
-- The same as Python says, whatever the collation of the database says.
create function holdfast.is_printable(shown text) returns boolean
  language sql immutable strict parallel safe
  return shown !~ ('[\u0001-\u001F\u007F-\u00A0\u00AD\u0600-\u0605\u061C\u06DD\u070F\u0890\u0891\u08E2\u1680\u180E'
    '\u2000-\u200F\u2028-\u202F\u205F-\u2064\u2066-\u206F\u3000\uE000-\uF8FF\uFDD0-\uFDEF\uFEFF\uFFF9-\uFFFB\uFFFE\uFFFF'
    '\U000110BD\U000110CD\U00013430-\U0001343F\U0001BCA0-\U0001BCA3\U0001D173-\U0001D17A\U000E0001\U000E0020-\U000E007F'
    '\U000F0000-\U0010FFFF]');

-- As before, with the bounds that Python has for tags, delays, keys and nesting. And a key whose task was deleted
-- between the conflict and the look is free again: it is asked for again, never answered with nothing.
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
  -- Names are looked up before they are inserted: a conflict draws an id all the same, and ids of lanes would run out.
  for asked in 1..2 loop
    exit when in_policy is not null;
    select p.policy_id into in_policy from holdfast.policy p where p.tenant_id = in_tenant and p.digest = '\x';
    continue when in_policy is not null;
    insert into holdfast.policy (tenant_id, digest, max_retries, max_losses, content)
    values (in_tenant, '\x', 3, 3, '{}')
    on conflict do nothing;
  end loop;
  select * into rules from holdfast.policy p where p.policy_id = in_policy;
  in_queue := coalesce(enqueue.queue, in_queue, 'default');
  in_priority := coalesce(enqueue.priority, in_priority, 5);
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
