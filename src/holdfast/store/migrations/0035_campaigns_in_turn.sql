-- Campaigns look at a bounded part of their group in each pass, share one turn, and are approved again when they are resumed.
-- Processes of older versions know none of this: they look at the whole group, and take turns of their own.

-- How far a campaign has looked in its present round through the letters of its group, and whether it passed by some that
-- wait with a paused queue or run. Who resumed it last asks for its approval from then on, as who started it did before.
alter table holdfast.campaign
  add column looked_to bigint not null default 0,
  add column passed_by boolean not null default false,
  add column resumed_by text;

alter table holdfast.campaign drop constraint campaign_eyes;
alter table holdfast.campaign add constraint campaign_eyes
  check (approved_by is null or approved_by <> coalesce(resumed_by, started_by));

-- Whose turn it is to move campaigns: nobody's before this moment. Who takes it moves those behind this one, one after the
-- other. One row.
create table holdfast.campaign_turn (
  is_only boolean primary key default true check (is_only),
  rests_until timestamptz not null default '-infinity',
  campaign_id int not null default 0
);
insert into holdfast.campaign_turn default values;
