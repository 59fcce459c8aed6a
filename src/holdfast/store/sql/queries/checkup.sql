-- name: durability() -> row
-- Return whether commits of this session survive a crash of the server.
select current_setting('fsync') as fsync, current_setting('synchronous_commit') as synchronous_commit;

-- name: tenant_role() -> row
-- Return whether the tenant role exists and this role may become it. PostgreSQL 16 separates membership from the right
-- to SET ROLE.
select r.oid is not null as has_role,
  coalesce(
    pg_has_role(
      current_user, r.oid, case when current_setting('server_version_num')::int >= 160000 then 'set' else 'member' end
    ), false
  ) as may_become,
  current_user::text as me
from (select) as always
left join pg_roles r on r.rolname = 'holdfast_tenant';

-- name: checkup_server() -> row
-- nullable: oldest_transaction_seconds, oldest_transaction_of, oldest_writer_of, oldest_writer_seconds
-- Return what the server is and guarantees: version, durability, clock, connections, and whether it cleans up dead
-- rows.
select current_setting('server_version') as version, current_setting('server_version_num')::int as version_number,
  current_setting('fsync') as fsync, current_setting('synchronous_commit') as synchronous_commit,
  current_setting('full_page_writes') as full_page_writes, current_setting('autovacuum') as autovacuum,
  current_setting('jit') as jit, current_user::text as me,
  clock_timestamp() as at, pg_is_in_recovery() as is_replica,
  current_setting('max_connections')::int as connections_max,
  (select count(*)::int from pg_stat_activity where backend_type = 'client backend') as connections,
  pg_notification_queue_usage() as notify_usage,
  (
    select extract(epoch from clock_timestamp() - min(xact_start))::double precision
    from pg_stat_activity
    where backend_xmin is not null and pid <> pg_backend_pid()
  ) as oldest_transaction_seconds,
  (
    select format('session %s of %s on database %s, %s', a.pid, coalesce(a.usename, 'an unknown role'),
      coalesce(a.datname, '?'), coalesce(nullif(a.application_name, ''), a.backend_type))
    from pg_stat_activity a
    where a.backend_xmin is not null and a.pid <> pg_backend_pid()
    order by a.xact_start
    limit 1
  ) as oldest_transaction_of,
  (
    select format('session %s of %s on database %s', a.pid, coalesce(a.usename, 'an unknown role'), coalesce(a.datname, '?'))
    from pg_stat_activity a
    where a.backend_xid is not null and a.pid <> pg_backend_pid()
    order by a.xact_start
    limit 1
  ) as oldest_writer_of,
  (
    select extract(epoch from clock_timestamp() - min(xact_start))::double precision
    from pg_stat_activity
    where backend_xid is not null and pid <> pg_backend_pid()
  ) as oldest_writer_seconds,
  (select count(*)::int from pg_prepared_xacts) as prepared_transactions,
  (select count(*)::int from pg_replication_slots where not active) as idle_slots;

-- name: checkup_rights() -> row
-- Return whether this role has the privileges it needs: read and write the hot table, draw ids, begin and drop blocks
-- (which needs the owner).
select current_user as role,
  has_schema_privilege('holdfast', 'usage') as has_usage,
  has_table_privilege('holdfast.live', 'select') and has_table_privilege('holdfast.live', 'insert')
    and has_table_privilege('holdfast.live', 'update') and has_table_privilege('holdfast.live', 'delete') as may_write,
  has_sequence_privilege('holdfast.task_id', 'usage') as may_draw_ids,
  pg_has_role((select relowner from pg_class where oid = 'holdfast.body'::regclass), 'member') as is_owner;

-- name: checkup_instant() -> row
-- Return whether the engine's clock is the one that the schema created, and how far it is from the database's own.
select pg_get_function_sqlbody(p.oid) is not distinct from 'RETURN statement_timestamp()' and p.provolatile = 's' as is_own,
  extract(epoch from holdfast.instant() - statement_timestamp())::double precision as ahead_seconds
from pg_proc p
where p.oid = 'holdfast.instant()'::regprocedure;

-- name: checkup_row_level_security() -> row
-- nullable: open_tables
-- Return whether tenants are separated: every table has row-level security, and the policies let the engine through.
select not row_security_active('holdfast.live') or exists (
    select
    from pg_policy p
    cross join lateral unnest(p.polroles) as passing (role_id)
    where p.polrelid = 'holdfast.live'::regclass and p.polname = 'engine' and pg_has_role(passing.role_id, 'usage')
  ) as is_engine,
  (
    select array_agg(c.relname::text order by c.relname)
    from pg_class c
    where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
      and not (c.relrowsecurity and c.relforcerowsecurity)
  ) as open_tables;

-- name: checkup_sequences(sequence_share_max) -> rows
-- Return sequences of the schema that have used more than a share of their numbers, the fullest first.
select s.sequencename::text as name, s.last_value::double precision / s.max_value as share
from pg_sequences s
where s.schemaname = 'holdfast' and s.last_value::double precision / s.max_value > @sequence_share_max::double precision
order by share desc, name;

-- name: checkup_work(silent_seconds) -> row
-- nullable: oldest_queued_seconds, overdue_seconds, unreaped_seconds, paused
-- Return whether tasks make progress: workers present, the oldest task that a worker should have claimed, due tasks
-- that were not promoted, expired leases that were not reaped, and the dead rows of the hot table.
select
  (select count(*)::int from holdfast.worker where state = 'active') as workers,
  (
    select count(*)::int
    from holdfast.worker
    where state = 'active' and beat_at < holdfast.instant() - make_interval(secs => @silent_seconds)
  ) as silent_workers,
  (
    select extract(epoch from holdfast.instant() - min(b.created_at))::double precision
    from holdfast.lane l
    join holdfast.queue q on q.queue_id = l.queue_id and q.paused_at is null
    cross join lateral (
      select t.task_id
      from holdfast.live t
      where t.state = 'q' and t.lane_id = l.lane_id
      order by t.priority, t.task_id
      limit 1
    ) head
    join holdfast.body b on b.task_id = head.task_id
  ) as oldest_queued_seconds,
  (
    select extract(epoch from holdfast.instant() - min(due_at))::double precision
    from holdfast.live
    where state = 'w'
  ) as overdue_seconds,
  (
    select extract(epoch from holdfast.instant() - min(lease_expires_at))::double precision
    from holdfast.live
    where state in ('r', 'v')
  ) as unreaped_seconds,
  (select array_agg(name order by name) from holdfast.queue where paused_at is not null) as paused,
  pg_total_relation_size('holdfast.live') as live_bytes,
  (select coalesce(n_dead_tup, 0) from pg_stat_user_tables where relid = 'holdfast.live'::regclass) as dead_rows,
  (select coalesce(n_live_tup, 0) from pg_stat_user_tables where relid = 'holdfast.live'::regclass) as live_rows;
