-- name: read_installation() -> value?
-- Return the id that distinguishes this database from every other in idempotency keys.
select installation::text
from holdfast.installation;

-- name: open_effect(task_id, attempt, lease_token, tenant_id, key, name, user_key?, ordinal, digest, compensation?,
--   arguments?) -> row
-- nullable: is_allowed, action, sends, state, is_same, receipt, code, message, compensated_by, known_task_id
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
  where t.task_id = @task_id and t.attempt = @attempt and t.lease_token = @lease_token and t.tenant_id = @tenant_id and t.state = 'r'
    and t.lease_expires_at > holdfast.instant()
  for key share of t
),
ruled as materialized (
  select coalesce(
      (
        select a.is_allowed
        from holdfast.authority a
        where a.tenant_id = lease.tenant_id and a.effect = @name and a.action in (lease.action, '')
        order by a.action desc
        limit 1
      ),
      not exists (select from holdfast.authority a where a.tenant_id = lease.tenant_id and a.effect = @name)
    ) as is_allowed
  from lease
),
seen as materialized (
  select e.ctid as version
  from holdfast.effect e
  where e.tenant_id = @tenant_id and e.key = @key
),
known as materialized (
  select e.*, e.ctid as version
  from holdfast.effect e
  where e.tenant_id = @tenant_id and e.key = @key and exists (select from ruled where ruled.is_allowed)
  for no key update of e
),
opened as (
  insert into holdfast.effect as e (
    tenant_id, key, name, user_key, ordinal, digest, compensation, arguments, task_id, attempt, generation, lease_token
  )
  select lease.tenant_id, @key, @name, @user_key, @ordinal, @digest, @compensation, @arguments, lease.task_id, lease.attempt, lease.generation, lease.lease_token
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
select ruled.is_allowed, lease.action, opened.sends, known.state::text as state, known.digest = @digest as is_same,
  known.receipt, known.code, known.message, known.compensated_by, known.task_id as known_task_id,
  coalesce(known.version = seen.version, false) as is_current
from (select) as always
left join lease on true
left join ruled on true
left join opened on true
left join seen on true
left join known on true;

-- name: effect_before(tenant_id, task_id, name, ordinal, digest) -> row?
-- Return the key under which a task of a run, or the task that it replaces, requested an effect before without a key of
-- its own: the n-th with that name. For another task only with the same arguments and if it was not compensated: the
-- members of a list may have changed their positions.
select e.key
from (
  select @task_id::bigint as task_id
  union all
  select b.counterpart from holdfast.predecessor_tasks(@task_id) b where b.counterpart is not null
) one
join holdfast.effect e on e.task_id = one.task_id
where e.tenant_id = @tenant_id and e.name = @name and e.user_key is null and e.ordinal = @ordinal
  and (e.task_id = @task_id or (e.digest = @digest and e.compensated_by is null))
order by e.task_id = @task_id desc, e.opened_at desc
limit 1;

-- name: answer_effect(task_id, attempt, lease_token, tenant_id, key, state, receipt?, code?, message?) -> row
-- nullable: opened_by
-- Store the outcome of an effect (d receipt, r refusal, u neither), for the lease that opened it and while that lease
-- is current. A repetition changes nothing and is recognized as the same answer.
with lease as materialized (
  select t.task_id, t.attempt, t.lease_token, t.tenant_id
  from holdfast.live t
  where t.task_id = @task_id and t.attempt = @attempt and t.lease_token = @lease_token and t.tenant_id = @tenant_id and t.state = 'r'
  for key share of t
),
answered as (
  update holdfast.effect e
  set state = @state::text::"char", receipt = @receipt, code = @code, message = @message,
    answered_at = case when @state::text in ('d', 'r') then holdfast.instant() end
  from lease
  where e.tenant_id = lease.tenant_id and e.key = @key and e.task_id = lease.task_id
    and e.lease_token = lease.lease_token and e.state = 'p'
  returning e.key
)
select exists (select from lease) as is_held,
  exists (select from answered)
  or exists (
    select from holdfast.effect e
    where e.tenant_id = @tenant_id and e.key = @key and e.task_id = @task_id and e.lease_token = @lease_token and e.state = @state::text::"char"
  ) as is_kept,
  (select e.task_id from holdfast.effect e where e.tenant_id = @tenant_id and e.key = @key) as opened_by;

-- name: recall_steps(task_id, lease_token) -> rows
-- Return the steps that earlier attempts of this generation stored.
select s.name, s.digest, s.output
from holdfast.step s
join holdfast.live t on t.task_id = s.task_id and t.generation = s.generation
where s.task_id = @task_id and t.lease_token = @lease_token;

-- name: store_step(task_id, attempt, lease_token, tenant_id, name, digest, output) -> row
-- Store the result of a step, if the lease is current. A stored step is not changed.
with lease as materialized (
  select t.task_id, t.attempt, t.tenant_id, t.generation
  from holdfast.live t
  where t.task_id = @task_id and t.attempt = @attempt and t.lease_token = @lease_token and t.tenant_id = @tenant_id and t.state = 'r'
  for key share of t
),
recorded as (
  insert into holdfast.step (task_id, tenant_id, attempt, generation, name, digest, output)
  select lease.task_id, lease.tenant_id, lease.attempt, lease.generation, @name, @digest, @output
  from lease
  on conflict (task_id, generation, name, digest) do nothing
)
select exists (select from lease) as is_held;

-- name: assert_lease(task_id, lease_token) -> nothing
-- Assert a lease in the caller's transaction and keep it until that transaction ends.
select holdfast.assert_lease(@task_id, @lease_token);

-- name: set_authority(tenant_id, effect, action, is_allowed, actor, reason) -> row?
-- Allow or deny an effect to an action, or to every action (''). From then on rules govern the effect.
insert into holdfast.authority as a (tenant_id, effect, action, is_allowed, actor, reason)
values (@tenant_id, @effect, @action, @is_allowed, @actor, @reason)
on conflict (tenant_id, effect, action) do update
set is_allowed = excluded.is_allowed, actor = excluded.actor, reason = excluded.reason, decided_at = holdfast.instant()
where a.is_allowed <> excluded.is_allowed
returning xmax = 0 as is_first;

-- name: list_authority(tenant_id, effect?) -> rows
-- Return every rule about effects of a tenant.
select a.effect, a.action, a.is_allowed, a.actor, a.reason, a.decided_at
from holdfast.authority a
where a.tenant_id = @tenant_id and (@effect::text is null or a.effect = @effect)
order by a.effect, a.action;

-- name: list_effects(tenant_id, task_ids?, state?, limit, key?, scan_rows_max) -> rows
-- nullable: task_id, effect, user_key, idempotency_key, state, attempt, generation, sends, opened_at, sent_at,
--   answered_at, receipt, code, message, compensation, compensated_by, compensated_at, last_key
-- Return effects of a tenant, newest tasks first: of some tasks, in one state, or all, up to a limit; after the one
-- with key @key. Effects without an answer are few and have an index of their own. Of the others at most @scan_rows_max are read,
-- beginning with the task of that key (see holdfast.newest_ids); `last_key` is the last of them if that left the page
-- short.
with last as materialized (
  select l.task_id, l.opened_at, l.key
  from holdfast.effect l
  where l.tenant_id = @tenant_id and l.key = @key::text
),
looks as materialized (
  select n.id, n.is_edge
  from holdfast.newest_ids(
    'effects', @tenant_id, 0, case when @key::text is null then 9223372036854775807 else (select task_id from last) end, @scan_rows_max
  ) n
  where @task_ids::bigint[] is null and (@state::text is null or @state not in ('pending', 'unknown'))
),
tasks as materialized (
  select distinct g.task_id
  from unnest(coalesce(@task_ids::bigint[], array(select looks.id from looks union select task_id from last))) as g (task_id)
  where @state::text is null or @state not in ('pending', 'unknown')
),
looked as materialized (
  select e.key, e.state
  from tasks
  cross join lateral (
    select e.key, e.state, e.task_id, e.opened_at
    from holdfast.effect e
    where e.tenant_id = @tenant_id and e.task_id = tasks.task_id
      and (@key::text is null or (-e.task_id, e.opened_at, e.key) > (select -task_id, opened_at, key from last))
    order by e.opened_at, e.key
    limit @scan_rows_max
  ) e
  order by e.task_id desc, e.opened_at, e.key
  limit @scan_rows_max
),
page as materialized (
  (
    select e.key
    from holdfast.effect e
    where @state::text in ('pending', 'unknown') and e.state in ('p', 'u') and e.tenant_id = @tenant_id
      and (@task_ids::bigint[] is null or e.task_id = any(@task_ids)) and holdfast.effect_state(e) = @state
      and e.task_id <= case when @key::text is null then 9223372036854775807 else (select task_id from last) end
      and (@key::text is null or (-e.task_id, e.opened_at, e.key) > (select -task_id, opened_at, key from last))
    order by e.task_id desc, e.opened_at, e.key
    limit @limit
  )
  union all
  (
    select looked.key
    from looked
    where @state::text is null or looked.state = case @state when 'done' then 'd' else 'r' end
    limit @limit
  )
),
cut as materialized (
  select case when (select count(*) from page) < @limit
      and ((select count(*) from looked) >= @scan_rows_max or exists (select from looks where looks.is_edge))
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
  where e.tenant_id = @tenant_id and e.key = page.key
  limit 1
) e on true
order by e.task_id desc, e.opened_at, e.key;

-- name: undone_effects(tenant_id, task_ids, limit) -> rows
-- nullable: answered_at, receipt, code, message
-- Return compensated effects of some tasks: they are not sent again under their keys.
select e.task_id::text as task_id, e.name as effect, e.user_key, e.key as idempotency_key,
  holdfast.effect_state(e) as state, e.attempt, e.generation, e.sends, e.opened_at, e.sent_at, e.answered_at, e.receipt,
  e.code, e.message, e.compensation, e.compensated_by::text as compensated_by, e.compensated_at
from holdfast.effect e
where e.tenant_id = @tenant_id and e.task_id = any(@task_ids::bigint[]) and e.compensated_by is not null
order by e.task_id desc, e.opened_at, e.key
limit @limit;

-- name: lock_compensation(tenant_id, key) -> row?
-- nullable: receipt, compensation, arguments, compensated_by
-- Lock the effect to be compensated, and return whether its task is still live and what the compensation needs.
select e.task_id, e.attempt, e.name, e.state::text as state, e.user_key, e.receipt, e.compensation, e.arguments,
  e.compensated_by, exists (select from holdfast.live t where t.task_id = e.task_id) as is_going_on
from holdfast.effect e
where e.tenant_id = @tenant_id and e.key = @key
for update of e;

-- name: record_compensation(tenant_id, key, task_id, actor, reason) -> nothing
-- Record the task that undoes an effect, once, with an event.
with done as (
  update holdfast.effect e
  set compensated_by = @task_id, compensated_at = holdfast.instant(), compensation_actor = @actor, compensation_reason = @reason
  where e.tenant_id = @tenant_id and e.key = @key and e.compensated_by is null
  returning e.tenant_id, e.task_id, e.attempt, e.name, e.key, e.compensated_by
),
events as (
  insert into holdfast.event (tenant_id, kind, task_ids, attempts, detail)
  select tenant_id, 'effect.compensated', array[task_id], array[attempt], jsonb_build_object(
    'effect', name, 'key', key, 'by', compensated_by::text, 'actor', @actor::text, 'reason', @reason::text)
  from done
)
select compensated_by
from done;
