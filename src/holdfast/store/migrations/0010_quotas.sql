-- Circuit breakers and retry quotas: what holds work back when too much of it fails. Shared by all workers.

-- Breakers and quotas count in the same table, so they take their ids from one sequence.
create sequence holdfast.guard_id as bigint;

-- What happened lately, in slices of a twelfth of a window: `part` of `whole`. For a breaker that is failures of
-- attempts, for a quota retries of first attempts. A ring: a slot is used again when its slice is long over, so nothing
-- is ever deleted and a guard has 144 rows at most. Shards keep workers from waiting for one another; -1 is the reconciler's.
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
create function holdfast.slice_now(window_seconds double precision) returns bigint
  language sql stable
  return floor(extract(epoch from holdfast.instant()) / (window_seconds / 12))::bigint;

-- One per action that declares it: c closed, o open, h half-open. An open one without `trial_at` is held open by hand.
create table holdfast.breaker (
  breaker_id bigint primary key default nextval('holdfast.guard_id'),
  tenant_id int not null references holdfast.tenant,
  action text not null,
  share double precision not null check (share > 0 and share <= 1),
  attempts_min int not null check (attempts_min > 0),
  window_seconds double precision not null check (window_seconds > 0),
  open_seconds double precision not null check (open_seconds > 0),
  trials int not null check (trials > 0),
  state "char" not null default 'c' check (state in ('c', 'o', 'h')),
  since timestamptz not null default holdfast.instant(),
  trial_at timestamptz,
  passed int not null default 0,
  -- Why it left the closed state: what it counted, or who said so.
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

-- At most `retries_max` retries per window, and at most `share` of the first attempts of that window. Of an action, of
-- a queue, or (neither named) of a whole tenant. `booked_until` only spreads those held back.
create table holdfast.quota (
  quota_id bigint primary key default nextval('holdfast.guard_id'),
  tenant_id int not null references holdfast.tenant,
  action text,
  queue_id int,
  retries_max int check (retries_max > 0),
  share double precision check (share > 0 and share <= 1),
  window_seconds double precision not null check (window_seconds > 0),
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
create function holdfast.covers(k holdfast.quota, l holdfast.lane) returns boolean
  language sql immutable
  return k.tenant_id = l.tenant_id
    and (k.action is null or k.action = l.action)
    and (k.queue_id is null or k.queue_id = l.queue_id);

-- What the failure is called, also where the budget or a switch decided: `reason` says why it stopped.
alter table holdfast.failure add column class text;

create or replace view holdfast.attempts with (security_invoker = true) as
select t.task_id::text as task_id, t.attempt, 'running' as state, t.worker_id, t.lease_token, t.started_at,
  null::timestamptz as ended_at, null::text as code, null::text as type, null::text as message, null::text as traceback,
  null::text as decision, null::text as reason, null::text as rule, null::text as sentence, null::timestamptz as retry_at,
  null::bytea as output, null::text as class
from holdfast.live t
where t.state in ('r', 'v')
union all
select a.task_id::text, a.attempt, case a.state when 'c' then 'completed' when 'x' then 'canceled' else 'released' end,
  a.worker_id, a.lease_token, a.started_at, a.ended_at, null, null, null, null, null, null, null, null, null, a.output, null
from holdfast.attempt a
union all
select f.task_id::text, f.attempt, case f.state when 'f' then 'failed' when 't' then 'timed_out' else 'lost' end,
  f.worker_id, f.lease_token, f.started_at, f.ended_at, f.code, f.type, f.message, f.traceback, f.decision, f.reason,
  f.rule, f.sentence, f.retry_at, null, coalesce(f.class, f.reason)
from holdfast.failure f;
