-- name: policies_say_what_they_contain() -> rows
-- The columns of a policy equal its content.
select p.policy_id
from holdfast.policy p
where coalesce((p.content ->> 'max_retries')::int, 3) <> p.max_retries
  or coalesce((p.content ->> 'max_losses')::int, 3) <> p.max_losses
  or (p.content ->> 'timeout_seconds')::double precision is distinct from p.timeout_seconds;

-- name: every_block_has_its_partitions() -> rows
-- Every block of ids has one partition of body, one of attempt and one of node.
select b.block
from holdfast.block b
where to_regclass(format('holdfast.body_%s', b.block)) is null
  or to_regclass(format('holdfast.attempt_%s', b.block)) is null
  or to_regclass(format('holdfast.node_%s', b.block)) is null;

-- name: the_next_id_has_a_block() -> rows
-- The next task id belongs to a block, so that it can be stored.
select s.last_value
from holdfast.task_id s
left join holdfast.block b on s.last_value + s.is_called::int between b.first_id and b.last_id
where b.block is null;

-- name: the_next_span_has_a_block() -> rows
-- The next ids of a run belong to a block, so that its nodes can be stored.
select s.last_value
from holdfast.span s
where not exists (select from holdfast.block b where s.last_value between b.first_id and b.last_id);

-- name: the_clock_is_the_databases_own() -> rows
-- The engine's time is the database's clock, not that of a test kit.
select p.oid::regprocedure::text as function, pg_get_function_sqlbody(p.oid) as body
from pg_proc p
where p.oid = 'holdfast.instant()'::regprocedure
  and (pg_get_function_sqlbody(p.oid) is distinct from 'RETURN statement_timestamp()' or p.provolatile <> 's');

-- name: every_index_is_valid() -> rows
-- No index was left half-built.
select i.indexrelid::regclass::text as index
from pg_index i
join pg_class c on c.oid = i.indrelid
where c.relnamespace = 'holdfast'::regnamespace and not (i.indisvalid and i.indisready);

-- name: every_constraint_is_checked() -> rows
-- Every constraint has been validated, and the index that refuses invalid rows of the hot table exists.
select c.conname
from pg_constraint c
where c.connamespace = 'holdfast'::regnamespace and not c.convalidated
union all
select 'live_invalid_rows'
where to_regclass('holdfast.live_invalid_rows') is null;

-- name: the_installation_has_its_secrets() -> rows
-- The secret that signs capability tokens exists and is long enough.
select w.purpose
from (values ('capability')) as w (purpose)
left join holdfast.secret s on s.purpose = w.purpose and octet_length(s.value) >= 32
where s.purpose is null;

-- name: the_epoch_is_that_of_this_server() -> rows
-- The newest epoch is that of this server.
select n.epoch, n.cause
from holdfast.current_epoch() n
where n.cause <> 'unbound';

-- name: no_id_is_before_its_epoch() -> rows
-- The next ids belong to the newest epoch, so that no id is assigned again that an earlier server assigned.
select e.epoch, t.last_value as task_id, s.last_value as span
from holdfast.epoch e
cross join holdfast.task_id t
cross join holdfast.span s
where e.epoch = (select max(n.epoch) from holdfast.epoch n)
  and (t.last_value < e.first_task_id or s.last_value < e.first_span);

-- name: events_are_not_ahead() -> rows
-- No event has a position that the transactions of this server have yet to reach: readers would skip their events.
select e.xid::text as place, e.seq
from holdfast.event e
where e.xid > holdfast.event_position(pg_snapshot_xmax(pg_current_snapshot()))
order by e.xid desc
limit 10;

-- name: the_server_was_not_replaced() -> rows
-- Warning: the database was promoted, copied or restored in the last week.
select e.epoch, e.cause, e.began_at
from holdfast.epoch e
where e.cause not in ('created', 'restarted') and e.began_at > holdfast.instant() - interval '7 days';
