-- Governed effects and memoised steps: what an action does to other systems, and what it need not do twice.

-- One row. Part of every idempotency key that is sent to a provider: two installations never use the same key, though
-- both number their tasks from 1.
create table holdfast.installation (
  installation uuid not null default gen_random_uuid(),
  is_only boolean primary key default true check (is_only)
);
insert into holdfast.installation default values;

-- Which action may cause which effect. An effect without a row is open to every action. With a row it is governed:
-- the row of the action decides, else the row for every action (''), else the effect is denied.
create table holdfast.authority (
  tenant_id int not null references holdfast.tenant,
  effect text not null check (effect ~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$'),
  action text not null default '',
  is_allowed boolean not null,
  actor text not null,
  reason text not null default '',
  decided_at timestamptz not null default holdfast.instant(),
  primary key (tenant_id, effect, action)
);

-- The outbox of effects: a row is committed before its effect is sent, under the lease of the attempt that sends it.
-- States: p being sent, u sent without an answer, d done (has its receipt), r refused by the other side. A row that
-- is p after its attempt ended is as unknown as one that is u; effect_state() says so. Task, attempt and token are
-- those of the last sender. Goes with the block of that task.
create table holdfast.effect (
  key text not null,
  task_id bigint not null,
  opened_at timestamptz not null default holdfast.instant(),
  sent_at timestamptz not null default holdfast.instant(),
  answered_at timestamptz,
  compensated_at timestamptz,
  compensated_by bigint,
  tenant_id int not null references holdfast.tenant,
  attempt int not null,
  ordinal int not null,
  sends int not null default 1 check (sends > 0),
  generation smallint not null,
  state "char" not null default 'p' check (state in ('p', 'u', 'd', 'r')),
  lease_token uuid not null,
  name text not null,
  user_key text,
  digest bytea not null,
  receipt bytea,
  code text,
  message text,
  -- The action that undoes the effect, and its arguments.
  compensation text,
  arguments bytea,
  compensation_actor text,
  compensation_reason text,
  primary key (tenant_id, key),
  constraint effect_receipt check ((state = 'd') = (receipt is not null)),
  constraint effect_answer check ((state in ('d', 'r')) = (answered_at is not null)),
  constraint effect_compensation check ((compensation is null) = (arguments is null)
    and (compensated_by is null) = (compensated_at is null) and (compensated_by is null or compensation is not null))
) with (fillfactor = 80);
create index effect_task on holdfast.effect (task_id);
-- Lists of a tenant: effects without an answer, and the others.
create index effect_unanswered on holdfast.effect (tenant_id, task_id) where state in ('p', 'u');
create index effect_answered on holdfast.effect (tenant_id, task_id) where state not in ('p', 'u');

-- The result of a step, for later attempts of the same generation. Goes with the block of its task.
create table holdfast.step (
  task_id bigint not null,
  kept_at timestamptz not null default holdfast.instant(),
  tenant_id int not null,
  attempt int not null,
  generation smallint not null,
  name text not null,
  digest bytea not null,
  output bytea not null,
  primary key (task_id, generation, name, digest)
);

-- The displayed state of an effect. `pending` means that a running attempt is sending it; every other effect without
-- an answer is `unknown`: it may have happened or not.
create function holdfast.effect_state(e holdfast.effect) returns text
  language sql stable
  return case
    when e.state = 'd' then 'done'
    when e.state = 'r' then 'refused'
    when e.state = 'p' and exists (
      select from holdfast.live t where t.task_id = e.task_id and t.lease_token = e.lease_token and t.state = 'r'
    ) then 'pending'
    else 'unknown'
  end;

-- The effects of a task that can be undone and were not yet. Returns a table, so PostgreSQL inlines it into lists.
create function holdfast.compensable_effects(dead_task_id bigint) returns table (key text) language sql stable as $$
  select e.key
  from holdfast.effect e
  where e.task_id = dead_task_id and e.compensation is not null and e.compensated_by is null and e.state <> 'r'
$$;
