"""The SQL of the raw ceiling: what PostgreSQL achieves with the same rows and no engine around them.

A task is a live row (leased, then deleted), a body and one attempt row, all fenced by a token. There are no tenants,
events, checks or heartbeats. It is a fixed reference and is never tuned to the engine's results.
"""

from __future__ import annotations

SCHEMA = """
drop schema if exists raw_ceiling cascade;
create schema raw_ceiling;
create table raw_ceiling.live (
  task_id bigint primary key,
  lane_id int not null,
  priority smallint not null,
  state "char" not null,
  attempt smallint not null default 0,
  worker_id int,
  lease_token uuid,
  lease_expires_at timestamptz,
  started_at timestamptz
) with (fillfactor = 75, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
create index live_queued on raw_ceiling.live (lane_id, priority, task_id) where state = 'q';
create table raw_ceiling.body (
  task_id bigint primary key,
  input bytea not null
);
create table raw_ceiling.attempt (
  task_id bigint,
  attempt smallint,
  worker_id int,
  lease_token uuid,
  started_at timestamptz,
  ended_at timestamptz,
  outcome "char",
  output bytea,
  primary key (task_id, attempt)
);
create sequence raw_ceiling.ids start 100000000;
"""

FILL_BODY = """
insert into raw_ceiling.body
select g, convert_to('{"i": ' || g || '}', 'utf8')
from generate_series(1, $1::int) as g
"""

FILL_LIVE = """
insert into raw_ceiling.live (task_id, lane_id, priority, state)
select g, 1, 5, 'q'
from generate_series(1, $1::int) as g
"""

TIDY = ("vacuum analyze raw_ceiling.live", "vacuum analyze raw_ceiling.body")

CLAIM = """
with pick as materialized (
  select task_id
  from raw_ceiling.live
  where state = 'q' and lane_id = 1
  order by priority, task_id
  limit $1
  for no key update skip locked
),
taken as (
  update raw_ceiling.live t
  set state = 'r', attempt = t.attempt + 1, worker_id = $2, lease_token = gen_random_uuid(),
    lease_expires_at = statement_timestamp() + interval '10 s', started_at = statement_timestamp()
  where t.task_id = any(array(select task_id from pick))
  returning t.task_id, t.attempt, t.lease_token
)
select taken.task_id, taken.attempt, taken.lease_token, b.input
from taken
cross join lateral (
  select input
  from raw_ceiling.body b
  where b.task_id = taken.task_id
  limit 1
) b
"""

COMPLETE = """
with given as materialized (
  select *
  from unnest($1::bigint[], $2::uuid[], $3::bytea[]) as g (task_id, lease_token, output)
),
held as materialized (
  select t.task_id, t.lease_token, t.state
  from raw_ceiling.live t
  where t.task_id = any($1::bigint[])
  order by t.task_id
  for update of t
),
fenced as materialized (
  select held.task_id, given.output
  from held
  join given on given.task_id = held.task_id and given.lease_token = held.lease_token
  where held.state = 'r'
),
gone as (
  delete from raw_ceiling.live t
  where t.task_id = any(array(select task_id from fenced))
  returning t.*
),
kept as (
  insert into raw_ceiling.attempt
  select gone.task_id, gone.attempt, gone.worker_id, gone.lease_token, gone.started_at, statement_timestamp(), 'c',
    fenced.output
  from gone
  join fenced using (task_id)
  returning 1
)
select count(*)
from kept
"""

ENQUEUE = """
with fresh as materialized (
  select nextval('raw_ceiling.ids') as id, input
  from unnest($1::bytea[]) as given (input)
),
bodies as (
  insert into raw_ceiling.body
  select id, input
  from fresh
)
insert into raw_ceiling.live (task_id, lane_id, priority, state)
select id, 1, 5, 'q'
from fresh
"""
