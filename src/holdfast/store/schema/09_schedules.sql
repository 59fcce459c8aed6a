-- Schedules: what fires when, and what became of every slot.

create table holdfast.schedule (
  schedule_id int generated always as identity primary key,
  tenant_id int not null references holdfast.tenant,
  name text not null check (name ~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,54}$'),
  -- The owner of the schedule: the app whose code declares it, or the person who made it. Other owners cannot change
  -- it.
  origin text not null,
  -- a fires an action, f starts a flow in its newest snapshot.
  kind "char" not null check (kind in ('a', 'f')),
  target text not null,
  cron text,
  every_seconds double precision check (every_seconds > 0),
  timezone text not null,
  overlap text not null check (overlap in ('skip', 'queue', 'replace', 'allow')),
  missed text not null check (missed in ('skip', 'latest', 'all')),
  max_waiting smallint not null check (max_waiting > 0),
  -- Null: as workers declared for the action.
  queue text,
  policy_id int,
  priority smallint,
  tags text[],
  input bytea not null,
  -- Whether `scheduled_for` is added to the input.
  wants_time boolean not null default false,
  -- The first slot that is not decided; and when a pass has to look again, which is earlier while a slot waits.
  next_at timestamptz,
  look_at timestamptz,
  -- The database's time when next_at was computed. If it is in the future, the clock was set back.
  counted_at timestamptz not null default holdfast.instant(),
  -- Retention deleted slots up to here. They may have fired, so they never fire again.
  forgotten_until timestamptz,
  trouble text,
  paused_at timestamptz,
  paused_by text,
  paused_reason text,
  created_at timestamptz not null default holdfast.instant(),
  -- Grows with every change: a decision that was made for one revision does not fire another.
  revision int not null default 1,
  -- The limit of concurrently active nodes of each of its runs; null: none.
  max_active int check (max_active > 0),
  unique (tenant_id, name),
  unique (tenant_id, schedule_id),
  foreign key (tenant_id, policy_id) references holdfast.policy (tenant_id, policy_id),
  constraint schedule_timing check ((cron is null) <> (every_seconds is null)),
  constraint schedule_paused check ((paused_at is null) = (paused_by is null))
);
-- Schedules that are due, and those whose clock was set back.
create index schedule_due on holdfast.schedule (look_at);
create index schedule_counted on holdfast.schedule (counted_at);

-- One slot of a schedule. States: f fired, w waits for the previous firing, k skipped, m missed. The primary key
-- ensures that a slot fires once. After a long time without a scheduler, consecutive slots with the same outcome
-- share the row of the last one: first_at .. slot_at.
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
  -- The task or run ended. If an operator runs it again later, the schedule does not wait for it.
  is_over boolean not null default false,
  cause text not null,
  reason text not null default '',
  actor text,
  primary key (schedule_id, slot_at),
  foreign key (tenant_id, schedule_id) references holdfast.schedule (tenant_id, schedule_id) on delete cascade,
  constraint slot_state check (state in ('f', 'w', 'k', 'm')),
  constraint slot_fired check ((state = 'f') = (num_nonnulls(task_id, run_id) = 1)),
  constraint slot_over check (state = 'f' or not is_over),
  constraint slot_range check ((slots > 1) = (first_at is not null) and (slots = 1 or state in ('k', 'm'))),
  constraint slot_manual check (is_manual = (actor is not null))
);
create unique index slot_task on holdfast.slot (task_id) where task_id is not null;
create unique index slot_run on holdfast.slot (run_id) where run_id is not null;
create index slot_open on holdfast.slot (schedule_id, slot_at) where state = 'f' and not is_over;
create index slot_waiting on holdfast.slot (schedule_id, slot_at) where state = 'w';
-- The last firing of a schedule, without reading the slots that it skipped since.
create index slot_fired on holdfast.slot (schedule_id, slot_at) where state = 'f';
