-- Queues, lanes, policies and actions: how work is grouped and what it may cost. Circuit breakers and retry quotas:
-- what holds work back when too much of it fails.

-- A queue, with its pause and its limits. starts_per_second is a token bucket: starts_left is its level at
-- starts_counted_at, and available_starts() is its level now.
create table holdfast.queue (
  queue_id int generated always as identity primary key,
  tenant_id int not null references holdfast.tenant,
  name text not null,
  paused_at timestamptz,
  paused_by text,
  paused_reason text,
  max_running int check (max_running > 0),
  starts_per_second double precision check (starts_per_second > 0),
  starts_left double precision not null default 0,
  starts_counted_at timestamptz,
  unique (tenant_id, name),
  unique (tenant_id, queue_id),
  check ((paused_at is null) = (paused_by is null))
);

-- The number of starts in a queue's bucket now. The bucket fills at starts_per_second and holds at most one second's
-- worth, but at least one start. Null for a queue without a rate limit.
create function holdfast.available_starts(q holdfast.queue) returns double precision
  language sql stable
  return case
    when q.starts_per_second is null then null
    when q.starts_counted_at is null then greatest(q.starts_per_second, 1)
    else least(
      greatest(q.starts_per_second, 1),
      q.starts_left + q.starts_per_second * greatest(0, extract(epoch from holdfast.instant() - q.starts_counted_at))
    )
  end;

-- Retry budget, time limit and further rules of a task. Immutable and interned by digest: the live row names one, so
-- the reaper can judge a lost attempt without any user code.
create table holdfast.policy (
  policy_id int generated always as identity primary key,
  tenant_id int not null references holdfast.tenant,
  digest bytea not null,
  max_retries smallint not null check (max_retries >= 0),
  max_losses smallint not null check (max_losses >= 0),
  timeout_seconds double precision check (timeout_seconds > 0),
  content jsonb not null,
  unique (tenant_id, digest),
  unique (tenant_id, policy_id)
);

-- What workers last declared about an action. A caller that knows only the name of the action, such as
-- holdfast.enqueue(), finds its queue, policy and priority here.
create table holdfast.action (
  action_id bigint generated always as identity primary key,
  tenant_id int not null references holdfast.tenant,
  name text not null,
  queue text not null,
  policy_id int not null,
  version text not null default '',
  seen_at timestamptz not null default holdfast.instant(),
  -- Which launcher starts a worker for each task; null where workers claim the tasks themselves.
  launcher text,
  priority smallint not null default 5,
  unique (tenant_id, name),
  foreign key (tenant_id, policy_id) references holdfast.policy (tenant_id, policy_id)
);

-- A lane is an interned (tenant, queue, action). It is the leading column of the claim index, so a worker claims from
-- the lanes of its actions and never scans work that it cannot run.
create table holdfast.lane (
  lane_id int generated always as identity primary key,
  tenant_id int not null,
  queue_id int not null,
  action text not null,
  unique (tenant_id, queue_id, action),
  foreign key (tenant_id, queue_id) references holdfast.queue (tenant_id, queue_id)
);
-- A worker that registers finds the lanes of its actions: of all tenants, or of its own.
create index lane_action on holdfast.lane (action);
create index lane_tenant_action on holdfast.lane (tenant_id, action);

-- Breakers and quotas share the table of counts below, so they take their ids from one sequence.
create sequence holdfast.guard_id as bigint;

-- Recent counts of a breaker or a quota, in slices of a twelfth of its window: `part` of `whole`. For a breaker these
-- are failures of attempts, for a quota retries of first attempts. The rows are a ring: a slot is overwritten once
-- its slice has left the window, so nothing is ever deleted and a guard has at most 144 rows. Shards keep workers
-- from waiting for the same row; shard -1 belongs to the reconciler.
create table holdfast.tally (
  guard_id bigint not null,
  slot smallint not null,
  shard smallint not null,
  slice bigint not null,
  whole bigint not null,
  part bigint not null,
  primary key (guard_id, slot, shard),
  constraint tally_part check (part >= 0 and whole >= 0)
) with (fillfactor = 50);

-- The running number of the current slice of a window.
create function holdfast.current_slice(window_seconds double precision) returns bigint
  language sql stable
  return floor(extract(epoch from holdfast.instant()) / (window_seconds / 12))::bigint;

-- The circuit breaker of an action that declares one. States: c closed, o open, h half-open. An open breaker without
-- `trial_at` was opened by hand and stays open until an operator closes it.
create table holdfast.breaker (
  breaker_id bigint primary key default nextval('holdfast.guard_id'),
  tenant_id int not null references holdfast.tenant,
  action text not null,
  -- It opens when at least this share of at least attempts_min attempts within the window failed.
  share double precision not null check (share > 0 and share <= 1),
  attempts_min int not null check (attempts_min > 0),
  window_seconds double precision not null check (window_seconds > 0),
  open_seconds double precision not null check (open_seconds > 0),
  -- How many attempts a half-open breaker lets through, and how many of them passed.
  trials int not null check (trials > 0),
  state "char" not null default 'c' check (state in ('c', 'o', 'h')),
  since timestamptz not null default holdfast.instant(),
  trial_at timestamptz,
  passed int not null default 0,
  -- Why it left the closed state: the counts that opened it, or the actor and the reason.
  attempts bigint not null default 0,
  failures bigint not null default 0,
  cause text not null default '',
  actor text not null default '',
  reason text not null default '',
  unique (tenant_id, action),
  constraint breaker_trial check (state = 'o' or trial_at is null),
  constraint breaker_passed check (passed = 0 or (state = 'h' and passed between 0 and trials)),
  constraint breaker_hand check (state <> 'o' or trial_at is not null or actor <> '')
) with (fillfactor = 50);

-- A retry quota: at most `retries_max` retries per window, and at most `share` of the first attempts of that window.
-- It covers one action, one queue or, if it names neither, the whole tenant.
create table holdfast.quota (
  quota_id bigint primary key default nextval('holdfast.guard_id'),
  tenant_id int not null references holdfast.tenant,
  action text,
  queue_id int,
  retries_max int check (retries_max > 0),
  share double precision check (share > 0 and share <= 1),
  window_seconds double precision not null check (window_seconds > 0),
  -- Only spreads the due times of retries that the quota held back.
  booked_until timestamptz,
  actor text not null default '',
  reason text not null default '',
  changed_at timestamptz not null default holdfast.instant(),
  unique nulls not distinct (tenant_id, action, queue_id),
  foreign key (tenant_id, queue_id) references holdfast.queue (tenant_id, queue_id),
  constraint quota_scope check (action is null or queue_id is null),
  constraint quota_limit check (retries_max is not null or share is not null)
) with (fillfactor = 50);

-- Whether a quota covers a lane.
create function holdfast.quota_covers(k holdfast.quota, l holdfast.lane) returns boolean
  language sql immutable
  return k.tenant_id = l.tenant_id
    and (k.action is null or k.action = l.action)
    and (k.queue_id is null or k.queue_id = l.queue_id);
