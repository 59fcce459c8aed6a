-- Campaigns: a group of dead letters re-driven as one named operation, a few first, more while it goes well.

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
  -- Only when a worker of a newer version than this has registered; null: whenever.
  newer_than text,
  canary int not null check (canary > 0),
  at_once int not null,
  -- Letters opened later do not belong to it. A resume takes in what came back.
  upto_id bigint not null,
  lane_ids int[] not null,
  -- Each resume begins another leg, which is judged by itself.
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
  constraint campaign_state check (
    state in ('awaiting_approval', 'awaiting_version', 'canary', 'ramp', 'stopped', 'completed', 'aborted')
  ),
  constraint campaign_pace check (at_once >= canary),
  constraint campaign_eyes check (approved_by is null or approved_by <> started_by),
  constraint campaign_approved check (
    not needs_approval or approved_by is not null or state in ('awaiting_approval', 'aborted')
  ),
  constraint campaign_ended check ((state in ('completed', 'aborted')) = (ended_at is not null)),
  constraint campaign_counts check (released >= succeeded + returned + failed + canceled + dropped)
);
-- One campaign at a time works on a group.
create unique index campaign_group on holdfast.campaign (tenant_id, fingerprint)
  where state not in ('completed', 'aborted');

-- The letters a campaign released, and what became of them.
create table holdfast.campaign_letter (
  campaign_id int not null references holdfast.campaign,
  dead_letter_id bigint not null,
  task_id bigint not null,
  leg int not null,
  outcome text check (outcome in ('succeeded', 'returned', 'failed', 'canceled', 'dropped')),
  primary key (campaign_id, dead_letter_id)
);
create index campaign_letter_outstanding on holdfast.campaign_letter (campaign_id) where outcome is null;
