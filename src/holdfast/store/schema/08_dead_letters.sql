-- Dead letters: tasks that failed for good, who asked for them to run again, and how that went. Campaigns: a group of
-- dead letters that is re-driven as one named operation, a few first, more while it goes well.

-- A dead letter is opened in the transaction that ends its task. It is never the task itself: running again takes the
-- ordinary path of a task.
create table holdfast.dead_letter (
  dead_letter_id bigint generated always as identity primary key,
  task_id bigint not null,
  run_id bigint,
  -- The letter before this one of the same task.
  previous_id bigint,
  opened_at timestamptz not null default holdfast.instant(),
  changed_at timestamptz not null default holdfast.instant(),
  dispatched_at timestamptz,
  -- Not offered to `reinject_once` before this time: another caller is working on it.
  hidden_until timestamptz,
  -- The pause that follows the last dispatch.
  backoff_seconds double precision,
  tenant_id int not null references holdfast.tenant,
  lane_id int not null,
  node_no int,
  campaign_id int,
  -- How many attempts the task had when the letter was opened. Dispatches are counted separately.
  attempts int not null,
  generation smallint not null,
  dispatches smallint not null default 0 check (dispatches >= 0),
  -- After this many dispatches the sweep parks the letter.
  dispatches_max smallint not null default 5 check (dispatches_max between 1 and 5),
  -- The sweep has to decide: the task of the letter came to rest, or an operator asked for a retry.
  wants_sweep boolean not null default false,
  state text not null default 'open',
  source_type text not null default 'task' check (source_type in ('task', 'tool_effect')),
  source_id text not null,
  -- Letters with the same fingerprint are a group: the same action failed in the same way.
  fingerprint text not null,
  cause text not null default '',
  reason text not null default '',
  recovery_options text[] not null default '{retry,ignore,abandon}',
  disposition text not null default '',
  disposition_reason text not null default '',
  actor text not null default '',
  -- The input of a node. That of a plain task is kept with its `ended` row.
  input bytea,
  constraint letter_state check (state in ('open', 'retry_requested', 'retrying', 'resolved', 'ignored')),
  constraint letter_node check ((run_id is null) = (node_no is null)),
  constraint letter_sweep check (not wants_sweep or state in ('retry_requested', 'retrying')),
  constraint letter_dispatched check (state <> 'retrying' or (dispatches > 0 and dispatched_at is not null)),
  constraint letter_decided check (state = 'open' or (disposition <> '' and actor <> ''))
) with (fillfactor = 80);
create index dead_letter_task on holdfast.dead_letter (task_id, dead_letter_id);
create index dead_letter_run on holdfast.dead_letter (run_id) where run_id is not null and state <> 'resolved';
create index dead_letter_sweep on holdfast.dead_letter (dead_letter_id) where wants_sweep;
-- Lists of a tenant: open letters, and the others. `dead_letter_id > 0` is true of every row, see run_open.
create index dead_letter_open on holdfast.dead_letter (tenant_id, dead_letter_id) where state = 'open';
create index dead_letter_not_open on holdfast.dead_letter (tenant_id, dead_letter_id) where state <> 'open' and dead_letter_id > 0;
-- The letters of a group: those that are not settled, and those that a campaign can release.
create index dead_letter_group on holdfast.dead_letter (tenant_id, fingerprint, dead_letter_id)
  where state in ('open', 'retry_requested', 'retrying');
create index dead_letter_redrivable on holdfast.dead_letter (tenant_id, fingerprint, dead_letter_id)
  where state in ('open', 'ignored');
-- Repair: letters whose task may have come to rest without telling. Retention: letters that were resolved long ago.
create index dead_letter_retrying on holdfast.dead_letter (dead_letter_id) where state = 'retrying' and not wants_sweep;
create index dead_letter_resolved on holdfast.dead_letter (changed_at) where state = 'resolved';

-- Who is putting a dead task back by hand. One row per task; the lease of a holder that died expires at expires_at.
create table holdfast.dead_lease (
  task_id bigint primary key,
  holder text not null,
  expires_at timestamptz not null
);

-- What an operator may do about a dead task. Compensation is offered only where the task caused an effect that can be
-- undone and was not yet.
create function holdfast.recovery_options(dead_task_id bigint) returns text[]
  language sql stable as $$
  select case
    when exists (select from holdfast.compensable_effects(dead_task_id)) then '{retry,ignore,abandon,compensate}'::text[]
    else '{retry,ignore,abandon}'::text[]
  end
$$;

-- Letters that can be re-driven: the one rule for all that count, plan or release them. The newest letter of each
-- task, if it is open or ignored and may be retried, while its task rests failed and its run, if it has one, exists
-- and was not canceled. `offset 0` and the subqueries make each letter a probe by key whatever the statistics say:
-- most callers want the first few of many.
create view holdfast.redrivable_dead_letters with (security_invoker = true) as
select d.dead_letter_id, d.task_id, d.run_id, d.opened_at, d.tenant_id, d.lane_id, d.node_no, d.dispatches, d.state,
  d.fingerprint
from holdfast.dead_letter d
where d.state in ('open', 'ignored')
  and 'retry' = any(d.recovery_options)
  and (d.state = 'open' or holdfast.is_failed_at_rest(d.task_id, d.run_id, d.node_no))
  and (d.run_id is null or exists (select from holdfast.run r where r.run_id = d.run_id and r.canceled_at is null offset 0))
  and d.dead_letter_id = (select max(n.dead_letter_id) from holdfast.dead_letter n where n.task_id = d.task_id);

-- A campaign over one group. Counts are of letters: total when it began; released, and of these by outcome. Each
-- resume begins another leg, which is judged by its own counts.
create table holdfast.campaign (
  campaign_id int generated always as identity primary key,
  tenant_id int not null references holdfast.tenant,
  name text not null,
  fingerprint text not null,
  state text not null,
  reason text not null check (reason <> ''),
  started_by text not null,
  started_at timestamptz not null default holdfast.instant(),
  changed_at timestamptz not null default holdfast.instant(),
  changed_by text not null default '',
  ended_at timestamptz,
  approved_by text,
  needs_approval boolean not null,
  -- Waits until a worker with a newer version than this has registered; null: does not wait.
  newer_than text,
  canary int not null check (canary > 0),
  at_once int not null,
  -- Letters opened later do not belong to it. A resume takes in those that came back.
  upto_id bigint not null,
  lane_ids int[] not null,
  leg int not null default 1,
  total int not null,
  released int not null default 0,
  succeeded int not null default 0,
  returned int not null default 0,
  failed int not null default 0,
  canceled int not null default 0,
  dropped int not null default 0,
  leg_released int not null default 0,
  leg_succeeded int not null default 0,
  leg_returned int not null default 0,
  leg_failed int not null default 0,
  -- What it waits for, or why it ended.
  note text not null default '',
  -- It rests after each pass in proportion to the time the pass took, so it uses a bounded share of one connection,
  -- however many processes there are and however slow the database is.
  rests_until timestamptz,
  -- The last letter that the present round through the group has looked at, and whether it passed some that wait with
  -- a paused queue or run.
  looked_to bigint not null default 0,
  passed_by boolean not null default false,
  -- From a resume on, its approval must come from another actor than the one who resumed it.
  resumed_by text,
  constraint campaign_state check (
    state in ('awaiting_approval', 'awaiting_version', 'canary', 'ramp', 'stopped', 'completed', 'aborted')
  ),
  constraint campaign_pace check (at_once >= canary),
  constraint campaign_second_person check (approved_by is null or approved_by <> coalesce(resumed_by, started_by)),
  constraint campaign_approved check (
    not needs_approval or approved_by is not null or state in ('awaiting_approval', 'aborted')
  ),
  constraint campaign_ended check ((state in ('completed', 'aborted')) = (ended_at is not null)),
  constraint campaign_counts check (released >= succeeded + returned + failed + canceled + dropped)
);
-- One campaign at a time works on a group.
create unique index campaign_group on holdfast.campaign (tenant_id, fingerprint)
  where state not in ('completed', 'aborted');

-- The letters that a campaign released, and their outcomes.
create table holdfast.campaign_letter (
  campaign_id int not null references holdfast.campaign,
  dead_letter_id bigint not null,
  task_id bigint not null,
  leg int not null,
  outcome text check (outcome in ('succeeded', 'returned', 'failed', 'canceled', 'dropped')),
  primary key (campaign_id, dead_letter_id)
);
create index campaign_letter_outstanding on holdfast.campaign_letter (campaign_id) where outcome is null;

-- One row: the lock of the loop that moves campaigns. No process moves one before rests_until; the next pass begins
-- behind campaign_id, so that each campaign gets its turn.
create table holdfast.campaign_turn (
  is_only boolean primary key default true check (is_only),
  rests_until timestamptz not null default '-infinity',
  campaign_id int not null default 0
);
insert into holdfast.campaign_turn default values;
