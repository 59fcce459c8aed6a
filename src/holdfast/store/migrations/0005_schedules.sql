-- Schedules: what fires when, and what became of every slot.

create table holdfast.schedule (
  schedule_id int generated always as identity primary key,
  tenant_id int not null references holdfast.tenant,
  name text not null check (name ~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,54}$'),
  -- Who keeps it: the app whose code declares it, or the person who made it. Nobody else changes it.
  origin text not null,
  -- a fires an action, f starts a flow, in its newest snapshot.
  kind "char" not null check (kind in ('a', 'f')),
  target text not null,
  cron text,
  every_seconds double precision check (every_seconds > 0),
  timezone text not null,
  overlap text not null check (overlap in ('skip', 'queue', 'replace', 'allow')),
  missed text not null check (missed in ('skip', 'latest', 'all')),
  max_waiting smallint not null check (max_waiting > 0),
  -- Null leaves it to what workers declared for the action.
  queue text,
  policy_id int,
  priority smallint,
  tags text[],
  input bytea not null,
  -- Whether the input gets `scheduled_for`.
  wants_time boolean not null default false,
  -- The first slot that nothing was decided about; and when a pass has to look, earlier while a slot waits.
  next_at timestamptz,
  look_at timestamptz,
  -- The database's time when next_at was counted: later than now means that the clock was set back.
  counted_at timestamptz not null default holdfast.instant(),
  -- Slots up to here were forgotten by retention: they may have fired, so they never fire again.
  forgotten_until timestamptz,
  trouble text,
  paused_at timestamptz,
  paused_by text,
  paused_reason text,
  created_at timestamptz not null default holdfast.instant(),
  -- Grows with every change: who decided on one revision does not fire another.
  revision int not null default 1,
  unique (tenant_id, name),
  unique (tenant_id, schedule_id),
  foreign key (tenant_id, policy_id) references holdfast.policy (tenant_id, policy_id),
  constraint schedule_timing check ((cron is null) <> (every_seconds is null)),
  constraint schedule_paused check ((paused_at is null) = (paused_by is null))
);
create index schedule_look on holdfast.schedule (look_at);
create index schedule_counted on holdfast.schedule (counted_at);

-- One slot: f fired, w waits for the previous firing, k skipped, m missed. Older slots that fared alike after a long
-- time without a scheduler share the row of their last one. The primary key is why a slot fires once.
create table holdfast.slot (
  schedule_id int not null,
  slot_at timestamptz not null,
  first_at timestamptz,
  decided_at timestamptz not null default holdfast.instant(),
  task_id bigint,
  run_id bigint,
  tenant_id int not null,
  slots int not null default 1 check (slots > 0),
  state "char" not null,
  is_manual boolean not null default false,
  -- The task or run ended. What an operator revives later is not the schedule's any more.
  is_over boolean not null default false,
  cause text not null,
  reason text not null default '',
  actor text,
  primary key (schedule_id, slot_at),
  foreign key (tenant_id, schedule_id) references holdfast.schedule (tenant_id, schedule_id) on delete cascade,
  constraint slot_state check (state in ('f', 'w', 'k', 'm')),
  constraint slot_fired check ((state = 'f') = (num_nonnulls(task_id, run_id) = 1)),
  constraint slot_over check (state = 'f' or not is_over),
  constraint slot_many check ((slots > 1) = (first_at is not null) and (slots = 1 or state in ('k', 'm'))),
  constraint slot_manual check (is_manual = (actor is not null))
);
create unique index slot_task on holdfast.slot (task_id) where task_id is not null;
create unique index slot_run on holdfast.slot (run_id) where run_id is not null;
create index slot_open on holdfast.slot (schedule_id, slot_at) where state = 'f' and not is_over;
create index slot_waiting on holdfast.slot (schedule_id, slot_at) where state = 'w';
