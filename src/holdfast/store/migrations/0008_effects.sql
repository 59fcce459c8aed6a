-- Governed effects and memoised steps: what an action does to the world outside, and what it need not do twice.

-- Part of every idempotency key: two databases never ask a provider for the same thing under the same key, though
-- both begin to count their tasks at 1.
create table holdfast.installation (
  installation uuid not null default gen_random_uuid(),
  is_only boolean primary key default true check (is_only)
);
insert into holdfast.installation default values;

-- Who may do what. An effect that no row names is open to every action; with a row it is governed: the action's own row
-- decides, else the row for every action (''), else it is denied.
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

-- The outbox: a row is committed before its effect is sent, under the lease of the attempt that sends it. p being sent,
-- u the sending ended without an answer, d done (has its receipt), r refused by the other side. A row that is p when
-- its attempt is over is as unknown as one that is u: the view says so. Task, attempt and token are the last sender's.
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
create index effect_open on holdfast.effect (tenant_id, task_id) where state in ('p', 'u');

-- What a step gave, for the later attempts of the same generation.
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

-- How an effect is shown. Whatever says `pending` is being sent by an attempt that runs; all else without an answer is
-- unknown: it may have happened or not.
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

create view holdfast.effects with (security_invoker = true) as
select e.task_id::text as task_id, n.name as tenant, e.name as effect, e.user_key, e.key as idempotency_key,
  holdfast.effect_state(e) as state, e.attempt, e.generation, e.sends, e.opened_at, e.sent_at, e.answered_at, e.receipt,
  e.code, e.message, e.compensation, e.compensated_by::text as compensated_by, e.compensated_at
from holdfast.effect e
join holdfast.tenant n on n.tenant_id = e.tenant_id;

-- For the user's own transaction: `select holdfast.assert_lease(task_id, lease_token)` raises unless the lease is
-- current, and keeps it so until that transaction ends. The key-share lock lets heartbeats renew the lease, but whoever
-- would settle, reap or cancel the attempt waits; so what the transaction writes, it writes as the holder.
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

create or replace function holdfast.drop_block(which int) returns void language plpgsql as $$
begin
  delete from holdfast.idempotency i using holdfast.block b
  where b.block = which and i.task_id between b.first_id and b.last_id;
  delete from holdfast.note n using holdfast.block b
  where b.block = which and n.task_id between b.first_id and b.last_id;
  -- Effects and steps live as long as the task that last sent or kept them.
  delete from holdfast.effect e using holdfast.block b
  where b.block = which and e.task_id between b.first_id and b.last_id;
  delete from holdfast.step s using holdfast.block b
  where b.block = which and s.task_id between b.first_id and b.last_id;
  -- Nothing of this block is live, failed or canceled any more, so these are the stumbles of tasks that completed.
  delete from holdfast.failure f using holdfast.block b
  where b.block = which and f.task_id between b.first_id and b.last_id;
  delete from holdfast.run r using holdfast.block b
  where b.block = which and r.run_id between b.first_id and b.last_id;
  execute format('drop table if exists holdfast.body_%s, holdfast.attempt_%s, holdfast.node_%s', which, which, which);
  delete from holdfast.block b where b.block = which;
end $$;
