-- Dead letters: what failed for good, who asked for it to run again, and how that went.
--
-- A letter opens in the transaction that ends its task and is never the task: running again goes through the ordinary
-- path. Failed tasks without a letter (workers older than this file make them) are found by a small index and adopted.

create table holdfast.dead_letter (
  dead_letter_id bigint generated always as identity primary key,
  task_id bigint not null,
  run_id bigint,
  previous_id bigint,
  opened_at timestamptz not null default holdfast.instant(),
  changed_at timestamptz not null default holdfast.instant(),
  dispatched_at timestamptz,
  -- Out of sight of `reinject_once` until then: somebody has it in hand.
  hidden_until timestamptz,
  -- The pause that follows the last dispatch.
  backoff_seconds double precision,
  tenant_id int not null references holdfast.tenant,
  lane_id int not null,
  node_no int,
  campaign_id int,
  -- How many attempts the task had had. Dispatches are counted apart from them.
  attempts int not null,
  generation smallint not null,
  dispatches smallint not null default 0 check (dispatches >= 0),
  -- After this many dispatches the sweep parks the letter.
  dispatches_max smallint not null default 5 check (dispatches_max between 1 and 5),
  -- Its task came to rest, or somebody asked: the sweep has something to judge.
  wants_sweep boolean not null default false,
  state text not null default 'open',
  source_type text not null default 'task' check (source_type in ('task', 'tool_effect')),
  source_id text not null,
  fingerprint text not null,
  cause text not null default '',
  reason text not null default '',
  recovery_options text[] not null default '{retry,ignore,abandon}',
  disposition text not null default '',
  disposition_reason text not null default '',
  actor text not null default '',
  -- What a node was given. A plain task's input is kept with the task.
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
create index dead_letter_open on holdfast.dead_letter (tenant_id, dead_letter_id) where state = 'open';
create index dead_letter_group on holdfast.dead_letter (tenant_id, fingerprint, dead_letter_id)
  where state in ('open', 'retry_requested', 'retrying');
create index dead_letter_under_way on holdfast.dead_letter (dead_letter_id) where state = 'retrying' and not wants_sweep;
create index dead_letter_over on holdfast.dead_letter (changed_at) where state = 'resolved';

-- What may be done about a dead task: undoing only where it did something that can be undone and was not yet.
create function holdfast.recovery_options(dead_task_id bigint) returns text[]
  language sql stable
  return case
    when exists (
      select
      from holdfast.effect e
      where e.task_id = dead_task_id and e.compensation is not null and e.compensated_by is null and e.state <> 'r'
    ) then '{retry,ignore,abandon,compensate}'::text[]
    else '{retry,ignore,abandon}'::text[]
  end;

-- Who is putting a dead task back by hand. One row per task; a holder that died lets go at expires_at.
create table holdfast.dead_lease (
  task_id bigint primary key,
  holder text not null,
  expires_at timestamptz not null
);

-- False: none was wanted. Null: nobody knew of letters.
alter table holdfast.ended add column has_letter boolean;
create index ended_unlettered on holdfast.ended (task_id) where state = 'f' and has_letter is null;
