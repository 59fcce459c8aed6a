-- Launchers: which actions have their worker started for them, by what, and what was started.

-- Null: workers pull the action's tasks. A worker of an older version leaves it as it is.
alter table holdfast.action add column launcher text;

-- What servers know how to launch, as they last said it: where `why` finds that none does, or that all slots are taken.
create table holdfast.launcher (
  name text primary key,
  kind text not null,
  slots int not null check (slots > 0),
  seen_at timestamptz not null
);

-- One launch per attempt, from the reservation until what was launched is known to be over: p about to be launched,
-- l launched, a attached, f failed and to be tried again. Tokens only as hashes, and none once one was used: all tries
-- of one attempt are the same launch, and whichever of its workers comes first has it.
create table holdfast.launch (
  task_id bigint not null,
  attempt int not null,
  tenant_id int not null,
  launcher text not null,
  state "char" not null default 'p',
  holder uuid,
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

-- A slot is a lease: taken for a moment to make a reservation, and then for as long as the reserved attempt is open.
-- That no two hold the same one is its key.
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

-- Whether a slot is taken: by the open attempt it was reserved for, or else until its lease runs out. Who makes the
-- reservation moves `expires_at`, so that somebody who looks with an older snapshot finds the lease, not a gap.
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
