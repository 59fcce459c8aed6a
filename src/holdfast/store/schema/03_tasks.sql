-- Tasks: the live row, what was asked for, attempts, failures and ends; and holdfast.enqueue() for any SQL client.
--
-- A task that is not over has one row in `live`. A completed task has its completing attempt in `attempt`; a task
-- that failed for good or was canceled has a row in `ended`. `body` holds what was asked for. A task that is a node
-- of a run, or an item of a node, has no body: its run and the snapshot of its flow say the same (see 05_flows.sql).

-- Ids of tasks that are enqueued one by one. They come from the lower half of the newest block (see
-- 15_retention.sql).
create sequence holdfast.task_id as bigint;

-- The hot table: only tasks that are not over. States: q queued, v reserved for a launcher, r running, w waiting
-- until due_at (delayed, or for its retry if is_retrying). The row of a running task is its open attempt: lease_token
-- is the fence that every report of that attempt must name.
--
-- Columns that a heartbeat changes are in no index, so a renewal is an in-place (HOT) update. Which combinations of
-- values are valid is enforced by an index below instead of by check constraints.
create table holdfast.live (
  task_id bigint primary key,
  due_at timestamptz,
  started_at timestamptz,
  lease_expires_at timestamptz,
  cancel_at timestamptz,
  worker_id bigint,
  tenant_id int not null,
  lane_id int not null,
  policy_id int not null,
  attempt int not null default 0,
  priority smallint not null,
  -- The budget of this task, copied from its policy, and what of it was used up.
  max_retries smallint not null,
  max_losses smallint not null,
  retries smallint not null default 0,
  losses smallint not null default 0,
  -- Grows with each re-drive, which begins with an unused budget.
  generation smallint not null default 1,
  state "char" not null,
  is_retrying boolean not null default false,
  -- A client waits for the result, so the settling transaction notifies it.
  is_awaited boolean not null default false,
  lease_token uuid,
  cancel_actor text,
  cancel_reason text,
  -- The node that the task is, or is an item of. Null for a task outside a flow.
  run_id bigint,
  node_no int
) with (
  fillfactor = 90,
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000,
  vacuum_truncate = off
);
-- The claim: the oldest task of the highest priority of a lane.
create index live_queued on holdfast.live (lane_id, priority, task_id) where state = 'q';
-- Tasks that are due, and the running tasks of a tenant or a worker: a running row has no due time, so its entries
-- are found by tenant and worker.
create index live_not_queued on holdfast.live (state, due_at, tenant_id, worker_id) where state <> 'q';
-- Lists of a tenant's reserved and waiting tasks. No other statement has this condition, so none uses it by mistake.
create index live_waiting on holdfast.live (tenant_id, task_id) where state <> 'q' and worker_id is null;

-- Refuse a row that would enter the index below.
create function holdfast.reject_invalid_row(task_id bigint, state "char") returns bigint
  language plpgsql immutable as $$
begin
  raise check_violation using
    message = format('task %s cannot be in state %s with this lease, owner, due time, budget or node (live_invalid_rows)', task_id, state),
    schema = 'holdfast', table = 'live', constraint = 'live_invalid_rows';
end $$;

-- No row can enter this index: each line of its condition describes an invalid row, and the indexed function raises
-- check_violation. It does the work of check constraints at a lower price: the server parses and plans every check
-- for every statement that writes, but an index condition once per connection. As check constraints these rules took
-- two fifths of the server's time for a single enqueue. The condition names no column that a heartbeat changes.
create index live_invalid_rows on holdfast.live (holdfast.reject_invalid_row(task_id, state)) where
  state not in ('q', 'v', 'r', 'w')
  or (state in ('r', 'v')) <> (lease_token is not null)
  or (state = 'r') <> (worker_id is not null)
  or (state = 'w') <> (due_at is not null)
  or (is_retrying and state <> 'w')
  or retries > max_retries
  or losses > max_losses
  or (run_id is null) <> (node_no is null);

-- What was asked for. Immutable. One partition per block of ids, so retention drops it as a whole.
create table holdfast.body (
  task_id bigint primary key,
  created_at timestamptz not null,
  -- The task that this one is a copy of.
  original_task_id bigint,
  tenant_id int not null,
  lane_id int not null,
  policy_id int not null,
  priority smallint not null,
  input bytea not null,
  tags text[],
  key text
) partition by range (task_id);
-- Which tasks are copies of one. Other tasks are not in it: their enqueue pays for one test of a null.
create index body_copies on holdfast.body (original_task_id, task_id) where original_task_id is not null;

-- Attempts that ended without a failure: c completed, x canceled, e released. Append-only, one partition per block.
create table holdfast.attempt (
  task_id bigint not null,
  started_at timestamptz not null,
  ended_at timestamptz not null,
  worker_id bigint,
  attempt int not null,
  tenant_id int not null,
  generation smallint not null default 1,
  state "char" not null check (state in ('c', 'x', 'e')),
  lease_token uuid not null,
  output bytea,
  primary key (task_id, attempt)
) partition by range (task_id);

-- Attempts that failed: f failed, t timed out, l lost; with the decision that followed. Kept as long as their task.
create table holdfast.failure (
  task_id bigint not null,
  attempt int not null,
  tenant_id int not null,
  worker_id bigint,
  generation smallint not null default 1,
  state "char" not null check (state in ('f', 't', 'l')),
  lease_token uuid not null,
  started_at timestamptz not null,
  ended_at timestamptz not null,
  code text not null,
  type text not null default '',
  message text not null,
  traceback text not null default '',
  decision text not null check (decision in ('retry', 'stop', 'cancel')),
  -- Why that was decided: the class of the failure, or the budget or switch that stopped the task.
  reason text not null,
  rule text not null,
  sentence text not null,
  retry_at timestamptz,
  -- The class of the failure itself, also where the budget or a switch decided.
  class text,
  primary key (task_id, attempt),
  check (retry_at is null or decision = 'retry')
);
create index failure_recent on holdfast.failure (tenant_id, ended_at desc);

-- Tasks that ended without completing: f failed for good, x canceled. The row has its own copy of the input, so that
-- the task can run again after retention dropped its body. A node has no copy: its input is computed from its
-- bindings.
create table holdfast.ended (
  task_id bigint primary key,
  tenant_id int not null,
  lane_id int not null,
  policy_id int not null,
  attempt int not null,
  priority smallint not null,
  max_retries smallint not null,
  max_losses smallint not null,
  retries smallint not null,
  losses smallint not null,
  generation smallint not null,
  state "char" not null check (state in ('f', 'x')),
  created_at timestamptz not null,
  ended_at timestamptz not null,
  reason text not null default '',
  actor text not null default '',
  input bytea,
  tags text[],
  key text,
  run_id bigint,
  node_no int,
  -- Of a failed task: whether a dead letter was opened for it.
  has_letter boolean,
  constraint ended_node check ((run_id is null) = (node_no is null))
);
-- Recent failures of a tenant; counts by lane are read from the index alone.
create index ended_recent on holdfast.ended (tenant_id, state, ended_at desc) include (lane_id);
-- Lists of a tenant, newest first.
create index ended_newest on holdfast.ended (tenant_id, task_id);
create index ended_node on holdfast.ended (run_id, node_no) where run_id is not null;

-- Idempotency keys of enqueues. The primary key decides which of two concurrent callers creates the task; `digest`
-- shows whether the other one asked for the same. Goes with the block of its task.
create table holdfast.idempotency (
  tenant_id int not null references holdfast.tenant,
  key text not null check (key <> ''),
  task_id bigint not null,
  digest bytea not null,
  primary key (tenant_id, key)
);

-- Log lines and progress that user code reported while it ran.
create table holdfast.note (
  task_id bigint not null,
  attempt int not null,
  seq bigint generated always as identity,
  tenant_id int not null,
  at timestamptz not null default holdfast.instant(),
  kind text not null check (kind in ('log', 'progress')),
  detail jsonb not null,
  primary key (task_id, attempt, seq)
);

-- Whether a text can be displayed: no control or format characters, no white space but the plain space, no
-- private-use characters. The answer is that of Python's str.isprintable(), whatever the collation of the database.
create function holdfast.is_printable(shown text) returns boolean
  language sql immutable strict parallel safe
  return shown !~ ('[\u0001-\u001F\u007F-\u00A0\u00AD\u0600-\u0605\u061C\u06DD\u070F\u0890\u0891\u08E2\u1680\u180E'
    '\u2000-\u200F\u2028-\u202F\u205F-\u2064\u2066-\u206F\u3000\uE000-\uF8FF\uFDD0-\uFDEF\uFEFF\uFFF9-\uFFFB\uFFFE\uFFFF'
    '\U000110BD\U000110CD\U00013430-\U0001343F\U0001BCA0-\U0001BCA3\U0001D173-\U0001D17A\U000E0001\U000E0020-\U000E007F'
    '\U000F0000-\U0010FFFF]');

-- Enqueue a task from any SQL client, inside the caller's own transaction: `select holdfast.enqueue('shop.mail',
-- '{"id": 7}')`. Queue, policy and priority are those that a worker last declared for the action, unless the caller
-- names them. The limits on names, input, tags, keys and delays are those of the Python client; an error names its
-- code as the hint. It sends no NOTIFY, which would serialise the caller's commit with every other one: workers find
-- the task at their next poll.
create function holdfast.enqueue(
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
  new_id bigint;
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
      returning i.task_id into new_id;
      exit when new_id is not null;
      select * into known from holdfast.idempotency i where i.tenant_id = in_tenant and i.key = enqueue.key;
      if known.digest <> digest then
        raise exception 'The key % already stands for task % with another input.', key, known.task_id
          using errcode = '23505', hint = 'idempotency_key_reused';
      elsif known.task_id is not null then
        return known.task_id::text;
      end if;
    end loop;
    if new_id is null then
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
  -- Names are looked up before they are inserted: an insert draws an id even if it conflicts, and the ids of lanes
  -- would run out.
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

  new_id := coalesce(new_id, nextval('holdfast.task_id'));
  insert into holdfast.body (task_id, created_at, tenant_id, lane_id, policy_id, priority, tags, key, input)
  values (new_id, holdfast.instant(), in_tenant, in_lane, rules.policy_id, in_priority, in_tags, enqueue.key, body);
  insert into holdfast.live (task_id, tenant_id, lane_id, policy_id, max_retries, max_losses, priority, state, due_at)
  values (new_id, in_tenant, in_lane, rules.policy_id, rules.max_retries, rules.max_losses, in_priority,
    (case when due is null then 'q' else 'w' end)::"char", due);
  return new_id::text;
end $$;

-- For a transaction of the user's own: raise unless the lease is current, and keep it current until that transaction
-- ends. The key-share lock lets heartbeats renew the lease, but whatever would settle, reap or cancel the attempt
-- waits. So what the transaction writes, it writes as the holder of the lease.
create function holdfast.assert_lease(task_id text, lease_token uuid) returns void language plpgsql as $$
begin
  perform
  from holdfast.live t
  where t.task_id = assert_lease.task_id::bigint and t.lease_token = assert_lease.lease_token and t.state = 'r'
  for key share of t;
  if not found then
    raise exception 'The lease on task % is not current.', assert_lease.task_id
      using errcode = 'LS409', hint = 'DAG_LEASE_CONTRACT_VIOLATION';
  end if;
end $$;
