-- Workers, the probes of their health, and launchers, which start a worker for each task.

-- One row per start of a worker process, never per host. Ids are never reused, so a worker that restarts is another
-- one. States: active, draining (finishes its tasks and takes no more), gone (signed off), lost (its heartbeats
-- stopped).
create table holdfast.worker (
  worker_id bigint generated always as identity primary key,
  incarnation uuid not null unique default gen_random_uuid(),
  name text not null,
  version text not null default '',
  -- Null: all queues.
  queues text[],
  actions text[] not null,
  slots int not null check (slots > 0),
  labels jsonb not null default '{}',
  health jsonb not null default '{}',
  state text not null default 'active' check (state in ('active', 'draining', 'gone', 'lost')),
  -- The API token that a remote worker registered with: a request with another token cannot act for it.
  token_id text,
  started_at timestamptz not null default holdfast.instant(),
  beat_at timestamptz not null default holdfast.instant(),
  ended_at timestamptz,
  tenant_id int not null default 1 references holdfast.tenant,
  -- An operator asked it to drain. Remembered here, so a worker that was lost and comes back still drains.
  drained_at timestamptz
) with (fillfactor = 50);
create index worker_present on holdfast.worker (worker_id) where state in ('active', 'draining');

-- The last answer of a worker at the URL that it registered as label `probe_url`. One row per worker that has one.
create table holdfast.probe (
  worker_id bigint primary key references holdfast.worker on delete cascade,
  tenant_id int not null default 1 references holdfast.tenant,
  due_at timestamptz not null,
  checked_at timestamptz,
  failures int not null default 0 check (failures >= 0),
  is_healthy boolean,
  detail text not null default ''
) with (fillfactor = 50);

-- The launchers that servers are configured with, as they last reported them. `holdfast why` finds here that no
-- server has the launcher of a task, or that all its slots are taken. Belongs to the installation, not to a tenant.
create table holdfast.launcher (
  name text primary key,
  kind text not null,
  slots int not null check (slots > 0),
  seen_at timestamptz not null,
  -- For which tenants and actions it launches; null: for all.
  tenant_ids int[],
  actions text[]
);

-- One launch per attempt, from the reservation until what was launched is known to be over. States: p about to be
-- launched, l launched, a attached, f failed and to be tried again. Tokens are stored as hashes, and removed once one
-- was used: all tries of an attempt are the same launch, and the first worker that attaches takes it.
create table holdfast.launch (
  task_id bigint not null,
  attempt int not null,
  tenant_id int not null,
  launcher text not null,
  state "char" not null default 'p',
  -- Joins the launch with its slot.
  holder uuid,
  -- The platform's name for what it started.
  handle text,
  failures smallint not null default 0,
  error text not null default '',
  token_hashes bytea[] not null,
  token_expires_at timestamptz not null,
  launching_until timestamptz not null,
  created_at timestamptz not null default holdfast.instant(),
  launched_at timestamptz,
  attached_at timestamptz,
  looked_at timestamptz not null default holdfast.instant(),
  primary key (task_id, attempt),
  constraint launch_state check (state in ('p', 'l', 'a', 'f')),
  constraint launch_failed_without_slot check (state <> 'f' or holder is null),
  constraint launch_attached_once check ((state = 'a') = (attached_at is not null) and (state <> 'a' or token_hashes = '{}'))
) with (fillfactor = 70);
create unique index launch_holder on holdfast.launch (holder);

-- A slot of a launcher is a lease: taken briefly to make a reservation, and then for as long as the reserved attempt
-- is open. The primary key ensures that no two launches hold the same slot.
create table holdfast.launch_slot (
  launcher text not null,
  slot int not null check (slot > 0),
  tenant_id int not null,
  task_id bigint not null,
  attempt int not null,
  holder uuid not null unique,
  expires_at timestamptz not null,
  primary key (launcher, slot)
);

-- Whether a slot is taken: by the open attempt that it was reserved for, or else until its lease expires. The
-- transaction that makes the reservation also moves `expires_at`, so a reader with an older snapshot sees the lease
-- and not a gap.
create function holdfast.is_slot_held(s holdfast.launch_slot) returns boolean
  language sql stable
  return case
    when exists (select from holdfast.launch h where h.holder = s.holder) then exists (
      select
      from holdfast.launch h
      join holdfast.live t on t.task_id = h.task_id and t.attempt = h.attempt and t.state in ('v', 'r')
      where h.holder = s.holder
    )
    else s.expires_at > holdfast.instant()
  end;

-- When a worker was first requested for an attempt, for attempts whose launched worker is over; until then the launch
-- says it. An attempt that a worker claimed by itself has no row. Goes with the block of its task.
create table holdfast.dispatched (
  task_id bigint not null,
  attempt int not null,
  tenant_id int not null,
  at timestamptz not null,
  primary key (task_id, attempt)
);

-- When a worker was requested for an attempt; for an attempt that a worker claimed by itself, when it began.
create function holdfast.dispatched_at(of_task bigint, of_attempt int, began timestamptz) returns timestamptz
  language sql stable as $$
  select coalesce(
    (select h.created_at from holdfast.launch h where h.task_id = of_task and h.attempt = of_attempt),
    (select d.at from holdfast.dispatched d where d.task_id = of_task and d.attempt = of_attempt),
    began
  )
$$;
