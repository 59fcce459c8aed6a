-- name: read_installation
-- Return the id that distinguishes this database from every other in idempotency keys.
select installation::text
from holdfast.installation;

-- name: open_effect
-- Open the gate before an effect: assert tenant, lease and authority, and commit the effect's row before anything is
-- sent. A row without an answer is opened again for the current lease unless its sender still runs. A refusal is opened
-- again for another task or generation, or after its task failed for good and an operator retried it. A receipt, other
-- arguments or a compensation keep the gate shut. The known row is returned as well. The lease is identified by task
-- and token, because one claim takes many tasks under one token. A row that changed since this statement began opens
-- nothing and is not `is_current`: the caller repeats the statement, so that the running sender and the compensation
-- are checked again. The statement does not prove that the effect happens once, only that it is sent under one key.
with lease as materialized (
  select t.task_id, t.attempt, t.lease_token, t.tenant_id, t.generation, l.action
  from holdfast.live t
  join holdfast.lane l on l.lane_id = t.lane_id
  where t.task_id = $1 and t.attempt = $2 and t.lease_token = $3 and t.tenant_id = $4 and t.state = 'r'
    and t.lease_expires_at > holdfast.instant()
  for key share of t
),
ruled as materialized (
  select coalesce(
      (
        select a.is_allowed
        from holdfast.authority a
        where a.tenant_id = lease.tenant_id and a.effect = $6 and a.action in (lease.action, '')
        order by a.action desc
        limit 1
      ),
      not exists (select from holdfast.authority a where a.tenant_id = lease.tenant_id and a.effect = $6)
    ) as is_allowed
  from lease
),
seen as materialized (
  select e.ctid as version
  from holdfast.effect e
  where e.tenant_id = $4 and e.key = $5
),
known as materialized (
  select e.*, e.ctid as version
  from holdfast.effect e
  where e.tenant_id = $4 and e.key = $5 and exists (select from ruled where ruled.is_allowed)
  for no key update of e
),
opened as (
  insert into holdfast.effect as e (
    tenant_id, key, name, user_key, ordinal, digest, compensation, arguments, task_id, attempt, generation, lease_token
  )
  select lease.tenant_id, $5, $6, $7, $8, $9, $10, $11, lease.task_id, lease.attempt, lease.generation, lease.lease_token
  from lease
  join ruled on ruled.is_allowed
  on conflict (tenant_id, key) do update
  set task_id = excluded.task_id, attempt = excluded.attempt, generation = excluded.generation,
    lease_token = excluded.lease_token, compensation = excluded.compensation, arguments = excluded.arguments,
    sends = e.sends
      + (e.state <> 'p' or (e.task_id, e.lease_token) <> (excluded.task_id, excluded.lease_token))::int,
    state = 'p', sent_at = holdfast.instant(), answered_at = null, code = null, message = null
  where e.ctid = (select seen.version from seen)
    and e.digest = excluded.digest
    and e.compensated_by is null
    and (
      e.state in ('p', 'u')
      or e.state = 'r' and (
        (e.task_id, e.generation) <> (excluded.task_id, excluded.generation)
        or exists (
          select from holdfast.failure f
          where f.task_id = e.task_id and f.attempt >= e.attempt and f.decision = 'stop'
        )
      )
    )
    and not exists (
      select from holdfast.live o
      where o.task_id = e.task_id and o.lease_token = e.lease_token and o.state = 'r'
        and (o.task_id, o.lease_token) <> (excluded.task_id, excluded.lease_token)
    )
  returning e.sends
)
select ruled.is_allowed, lease.action, opened.sends, known.state::text as state, known.digest = $9 as is_same,
  known.receipt, known.code, known.message, known.compensated_by, known.task_id as known_task_id,
  coalesce(known.version = seen.version, false) as is_current
from (select) as always
left join lease on true
left join ruled on true
left join opened on true
left join seen on true
left join known on true;

-- name: effect_before
-- Return the key under which a task of a run, or the task that it replaces, requested an effect before without a key of
-- its own: the n-th with that name. For another task only with the same arguments and if it was not compensated: the
-- members of a list may have changed their positions.
select e.key
from (
  select $2::bigint as task_id
  union all
  select b.counterpart from holdfast.predecessor_tasks($2) b where b.counterpart is not null
) one
join holdfast.effect e on e.task_id = one.task_id
where e.tenant_id = $1 and e.name = $3 and e.user_key is null and e.ordinal = $4
  and (e.task_id = $2 or (e.digest = $5 and e.compensated_by is null))
order by e.task_id = $2 desc, e.opened_at desc
limit 1;

-- name: answer_effect
-- Store the outcome of an effect (d receipt, r refusal, u neither), for the lease that opened it and while that lease
-- is current. A repetition changes nothing and is recognized as the same answer.
with lease as materialized (
  select t.task_id, t.attempt, t.lease_token, t.tenant_id
  from holdfast.live t
  where t.task_id = $1 and t.attempt = $2 and t.lease_token = $3 and t.tenant_id = $4 and t.state = 'r'
  for key share of t
),
answered as (
  update holdfast.effect e
  set state = $6::text::"char", receipt = $7, code = $8, message = $9,
    answered_at = case when $6::text in ('d', 'r') then holdfast.instant() end
  from lease
  where e.tenant_id = lease.tenant_id and e.key = $5 and e.task_id = lease.task_id
    and e.lease_token = lease.lease_token and e.state = 'p'
  returning e.key
)
select exists (select from lease) as is_held,
  exists (select from answered)
  or exists (
    select from holdfast.effect e
    where e.tenant_id = $4 and e.key = $5 and e.task_id = $1 and e.lease_token = $3 and e.state = $6::text::"char"
  ) as is_kept,
  (select e.task_id from holdfast.effect e where e.tenant_id = $4 and e.key = $5) as opened_by;

-- name: recall_steps
-- Return the steps that earlier attempts of this generation stored.
select s.name, s.digest, s.output
from holdfast.step s
join holdfast.live t on t.task_id = s.task_id and t.generation = s.generation
where s.task_id = $1 and t.lease_token = $2;

-- name: keep_step
-- Store the result of a step, if the lease is current. A stored step is not changed.
with lease as materialized (
  select t.task_id, t.attempt, t.tenant_id, t.generation
  from holdfast.live t
  where t.task_id = $1 and t.attempt = $2 and t.lease_token = $3 and t.tenant_id = $4 and t.state = 'r'
  for key share of t
),
recorded as (
  insert into holdfast.step (task_id, tenant_id, attempt, generation, name, digest, output)
  select lease.task_id, lease.tenant_id, lease.attempt, lease.generation, $5, $6, $7
  from lease
  on conflict (task_id, generation, name, digest) do nothing
)
select exists (select from lease) as is_held;

-- name: assert_lease
-- Assert a lease in the caller's transaction and keep it until that transaction ends.
select holdfast.assert_lease($1, $2);

-- name: rule_authority
-- Allow or deny an effect to an action, or to every action (''). From then on rules govern the effect.
insert into holdfast.authority as a (tenant_id, effect, action, is_allowed, actor, reason)
values ($1, $2, $3, $4, $5, $6)
on conflict (tenant_id, effect, action) do update
set is_allowed = excluded.is_allowed, actor = excluded.actor, reason = excluded.reason, decided_at = holdfast.instant()
where a.is_allowed <> excluded.is_allowed
returning xmax = 0 as is_first;

-- name: list_authority
-- Return every rule about effects of a tenant.
select a.effect, a.action, a.is_allowed, a.actor, a.reason, a.decided_at
from holdfast.authority a
where a.tenant_id = $1 and ($2::text is null or a.effect = $2)
order by a.effect, a.action;

-- name: list_effects
-- Return effects of a tenant, newest tasks first: of some tasks, in one state, or all, up to a limit; after the one
-- with key $5. Effects without an answer are few and have an index of their own. Of the others at most $6 are read,
-- beginning with the task of that key (see holdfast.newest_ids); `last_key` is the last of them if that left the page
-- short.
with last as materialized (
  select l.task_id, l.opened_at, l.key
  from holdfast.effect l
  where l.tenant_id = $1 and l.key = $5::text
),
looks as materialized (
  select n.id, n.is_edge
  from holdfast.newest_ids(
    'effects', $1, 0, case when $5::text is null then 9223372036854775807 else (select task_id from last) end, $6
  ) n
  where $2::bigint[] is null and ($3::text is null or $3 not in ('pending', 'unknown'))
),
tasks as materialized (
  select distinct g.task_id
  from unnest(coalesce($2::bigint[], array(select looks.id from looks union select task_id from last))) as g (task_id)
  where $3::text is null or $3 not in ('pending', 'unknown')
),
looked as materialized (
  select e.key, e.state
  from tasks
  cross join lateral (
    select e.key, e.state, e.task_id, e.opened_at
    from holdfast.effect e
    where e.tenant_id = $1 and e.task_id = tasks.task_id
      and ($5::text is null or (-e.task_id, e.opened_at, e.key) > (select -task_id, opened_at, key from last))
    order by e.opened_at, e.key
    limit $6
  ) e
  order by e.task_id desc, e.opened_at, e.key
  limit $6
),
page as materialized (
  (
    select e.key
    from holdfast.effect e
    where $3::text in ('pending', 'unknown') and e.state in ('p', 'u') and e.tenant_id = $1
      and ($2::bigint[] is null or e.task_id = any($2)) and holdfast.effect_state(e) = $3
      and e.task_id <= case when $5::text is null then 9223372036854775807 else (select task_id from last) end
      and ($5::text is null or (-e.task_id, e.opened_at, e.key) > (select -task_id, opened_at, key from last))
    order by e.task_id desc, e.opened_at, e.key
    limit $4
  )
  union all
  (
    select looked.key
    from looked
    where $3::text is null or looked.state = case $3 when 'done' then 'd' else 'r' end
    limit $4
  )
),
cut as materialized (
  select case when (select count(*) from page) < $4
      and ((select count(*) from looked) >= $6 or exists (select from looks where looks.is_edge))
    then (select looked.key from looked offset greatest((select count(*) from looked) - 1, 0) limit 1) end as last_key
)
select e.task_id::text as task_id, e.name as effect, e.user_key, e.key as idempotency_key, e.label as state, e.attempt,
  e.generation, e.sends, e.opened_at, e.sent_at, e.answered_at, e.receipt, e.code, e.message, e.compensation,
  e.compensated_by::text as compensated_by, e.compensated_at, cut.last_key
from cut
left join page on true
left join lateral (
  select e.*, holdfast.effect_state(e) as label
  from holdfast.effect e
  where e.tenant_id = $1 and e.key = page.key
  limit 1
) e on true
order by e.task_id desc, e.opened_at, e.key;

-- name: undone_effects
-- Return compensated effects of some tasks: they are not sent again under their keys.
select e.task_id::text as task_id, e.name as effect, e.user_key, e.key as idempotency_key,
  holdfast.effect_state(e) as state, e.attempt, e.generation, e.sends, e.opened_at, e.sent_at, e.answered_at, e.receipt,
  e.code, e.message, e.compensation, e.compensated_by::text as compensated_by, e.compensated_at
from holdfast.effect e
where e.tenant_id = $1 and e.task_id = any($2::bigint[]) and e.compensated_by is not null
order by e.task_id desc, e.opened_at, e.key
limit $3;

-- name: lock_compensation
-- Lock the effect to be compensated, and return whether its task is still live and what the compensation needs.
select e.task_id, e.attempt, e.name, e.state::text as state, e.user_key, e.receipt, e.compensation, e.arguments,
  e.compensated_by, exists (select from holdfast.live t where t.task_id = e.task_id) as is_going_on
from holdfast.effect e
where e.tenant_id = $1 and e.key = $2
for update of e;

-- name: keep_compensation
-- Record the task that undoes an effect, once, with an event.
with done as (
  update holdfast.effect e
  set compensated_by = $3, compensated_at = holdfast.instant(), compensation_actor = $4, compensation_reason = $5
  where e.tenant_id = $1 and e.key = $2 and e.compensated_by is null
  returning e.tenant_id, e.task_id, e.attempt, e.name, e.key, e.compensated_by
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'effect.compensated', array[task_id], array[attempt], jsonb_build_object(
    'effect', name, 'key', key, 'by', compensated_by::text, 'actor', $4::text, 'reason', $5::text)
  from done
)
select compensated_by
from done;
