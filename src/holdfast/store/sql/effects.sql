-- name: read_installation
-- What tells this database from every other, in idempotency keys.
select installation::text
from holdfast.installation;

-- name: open_effect
-- The gate before an effect: the tenant, the lease and the authority are asserted and the outbox row is committed before
-- anything is sent. A row without an answer is opened again for the current lease unless its sender still runs; a refusal
-- is asked again by another task or generation, or once its task failed for good and an operator retried it; a receipt, other arguments or a compensation keep it shut. What was
-- known before comes back beside. A lease is a task and a token: one claim takes many tasks under one token. A row that
-- changed since this statement began opens nothing, and is not current: who runs, and what was undone, is asked again. It
-- does not prove that the effect happens once, only that it goes under one key.
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
-- The key under which a task of a run, or the one in whose place it is there, asked for an effect before without a key of
-- its own: the n-th of that name. Of another task only with the same arguments, and if nobody undid it: members of a list
-- may have changed places.
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
-- Keep what came of an effect (d its receipt, r a refusal, u neither), by the lease that opened it and while it is
-- current. Repeated, it changes nothing and shows that the same lease had said so before.
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
-- What earlier attempts of this generation kept.
select s.name, s.digest, s.output
from holdfast.step s
join holdfast.live t on t.task_id = s.task_id and t.generation = s.generation
where s.task_id = $1 and t.lease_token = $2;

-- name: keep_step
-- Keep what a step gave, if the lease is current. A step that is kept already stays as it is.
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
-- Assert a lease in the caller's transaction and keep it until that ends.
select holdfast.assert_lease($1, $2);

-- name: rule_authority
-- Say whether an action, or every action (''), may do an effect: from then on the effect is governed.
insert into holdfast.authority as a (tenant_id, effect, action, is_allowed, actor, reason)
values ($1, $2, $3, $4, $5, $6)
on conflict (tenant_id, effect, action) do update
set is_allowed = excluded.is_allowed, actor = excluded.actor, reason = excluded.reason, decided_at = holdfast.instant()
where a.is_allowed <> excluded.is_allowed
returning xmax = 0 as is_first;

-- name: list_authority
-- Every rule about effects of a tenant.
select a.effect, a.action, a.is_allowed, a.actor, a.reason, a.decided_at
from holdfast.authority a
where a.tenant_id = $1 and ($2::text is null or a.effect = $2)
order by a.effect, a.action;

-- name: list_effects
-- Effects of a tenant, newest tasks first: of some tasks, in one state, or all, to a bound; after the one under a key ($5).
-- What has no answer is few and has an index of its own. Of others no more than $6 are looked at, from the task of that key
-- on (see holdfast.newest_ids); `last_key` is the last of them where that left the page short.
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
-- Effects of some tasks that were undone: under their keys they are not done again, whatever became of them.
select e.task_id::text as task_id, e.name as effect, e.user_key, e.key as idempotency_key,
  holdfast.effect_state(e) as state, e.attempt, e.generation, e.sends, e.opened_at, e.sent_at, e.answered_at, e.receipt,
  e.code, e.message, e.compensation, e.compensated_by::text as compensated_by, e.compensated_at
from holdfast.effect e
where e.tenant_id = $1 and e.task_id = any($2::bigint[]) and e.compensated_by is not null
order by e.task_id desc, e.opened_at, e.key
limit $3;

-- name: lock_compensation
-- The effect to be undone, locked; whether its task still goes on, and what its compensation needs to know.
select e.task_id, e.attempt, e.name, e.state::text as state, e.user_key, e.receipt, e.compensation, e.arguments,
  e.compensated_by, exists (select from holdfast.live t where t.task_id = e.task_id) as is_going_on
from holdfast.effect e
where e.tenant_id = $1 and e.key = $2
for update of e;

-- name: keep_compensation
-- Write down which task undoes an effect, once, and tell.
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
