-- Isolation of tenants by row-level security, which holds even where a statement forgets to name the tenant.
--
-- A process that works for one tenant runs every transaction as the role `holdfast_tenant`, with the tenant's id in
-- the setting `holdfast.tenant_id`. Row-level security shows that role the rows of that tenant and no others. All
-- other roles that work here are the engine: the owner of the tables, and roles that were granted writing to them.

-- Create the role if this is allowed, and put every table of the schema behind row-level security: enabled, forced,
-- one policy for the engine and one for the tenant. Run it again after tables were added, after the role was created
-- by hand, and after another role was granted writing; `holdfast migrate` does. Returns whether the role exists.
--
-- The tenant's role reaches a table only where a rule is known: its own tenant_id, or the row it belongs to. A table
-- that a later migration adds without either stays out of its reach, and so do partitions, which have no grants of
-- their own.
create function holdfast.secure_tenants() returns boolean language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  mine constant text := 'tenant_id = nullif(current_setting(''holdfast.tenant_id'', true), '''')::int';
  has_role boolean;
  engines text;
  others text;
  readers text;
  one record;
begin
  begin
    if not exists (select from pg_roles r where r.rolname = 'holdfast_tenant') then
      create role holdfast_tenant nologin;
    end if;
    -- The creator of a role may grant it, but from PostgreSQL 16 on may not assume it without a grant.
    if not pg_has_role(current_user, 'holdfast_tenant',
      case when current_setting('server_version_num')::int >= 160000 then 'set' else 'member' end)
    then
      execute format('grant holdfast_tenant to %I', current_user);
    end if;
  exception
    -- The migration of another database on this server created it at the same time.
    when unique_violation or duplicate_object or internal_error then null;
    -- Then an administrator has to create it; `holdfast doctor` says how.
    when insufficient_privilege then null;
  end;
  has_role := exists (select from pg_roles r where r.rolname = 'holdfast_tenant');

  select string_agg(distinct quote_ident(r.rolname), ', ') into engines
  from pg_class c
  left join lateral aclexplode(c.relacl) a on a.privilege_type = 'INSERT'
  join pg_roles r on r.oid in (c.relowner, a.grantee) and r.rolname <> 'holdfast_tenant'
  where c.oid = 'holdfast.live'::regclass;

  -- A role that writes without owning the tables gets grants on new tables; a role that only reads sees every row.
  select string_agg(distinct quote_ident(r.rolname), ', ') filter (where a.privilege_type = 'INSERT'),
    string_agg(distinct quote_ident(r.rolname), ', ') filter (
      where a.privilege_type = 'SELECT' and not has_table_privilege(r.oid, c.oid, 'insert')
    )
  into others, readers
  from pg_class c
  cross join lateral aclexplode(c.relacl) a
  join pg_roles r on r.oid = a.grantee and r.oid <> c.relowner and r.rolname <> 'holdfast_tenant'
  where c.oid = 'holdfast.live'::regclass;
  if has_role and others is not null then
    begin
      execute format('grant holdfast_tenant to %s', others);
    exception when insufficient_privilege then null;
    end;
  end if;

  for one in
    select c.relname as name, c.relrowsecurity and c.relforcerowsecurity as is_forced,
      case c.relname
        -- Tables of the installation without secrets.
        when 'installation' then 'true'
        when 'epoch' then 'true'
        when 'launcher' then 'true'
        when 'wake' then 'true'
        when 'dataset_build' then
          'exists (select from holdfast.dataset_generation g where g.generation_id = dataset_build.generation_id)'
        when 'campaign_letter' then
          'exists (select from holdfast.campaign c where c.campaign_id = campaign_letter.campaign_id)'
        when 'dead_lease' then
          'exists (select from holdfast.dead_letter d where d.task_id = dead_lease.task_id)'
        when 'tally' then
          'exists (select from holdfast.breaker b where b.breaker_id = tally.guard_id)'
          || ' or exists (select from holdfast.quota k where k.quota_id = tally.guard_id)'
        else case when exists (
          select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped
        ) then mine end
      end as rule,
      case c.relname
        when 'tenant' then 'select'
        when 'installation' then 'select'
        when 'epoch' then 'select'
        when 'launcher' then 'select'
        when 'wake' then 'select'
        when 'audit' then 'select, insert'
        when 'event' then 'select, insert'
        when 'audit_head' then 'select, insert, update'
        when 'secret' then 'select'
        else 'select, insert, update, delete'
      end as rights,
      (select p.polname is not null from pg_policy p where p.polrelid = c.oid and p.polname = 'engine') as has_engine,
      (
        select string_agg(distinct quote_ident(r.rolname), ', ')
        from pg_policy p
        join pg_roles r on r.oid = any(p.polroles)
        where p.polrelid = c.oid and p.polname = 'engine'
      ) as known_engines,
      (
        select string_agg(distinct quote_ident(r.rolname), ', ')
        from pg_policy p
        join pg_roles r on r.oid = any(p.polroles)
        where p.polrelid = c.oid and p.polname = 'reader'
      ) as known_readers,
      exists (select from pg_policy p where p.polrelid = c.oid and p.polname = 'tenant') as has_tenant
    from pg_class c
    where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
    -- The hot table last, so that its lock is held for the shortest time.
    order by c.relname = 'live', c.relname
  loop
    if others is not null and not (
      select bool_and(has_table_privilege(r.oid, format('holdfast.%I', one.name)::regclass, 'select'))
      from pg_roles r
      where quote_ident(r.rolname) = any(string_to_array(others, ', '))
    ) then
      execute format('grant %s on holdfast.%I to %s', one.rights, one.name, others);
    end if;
    if readers is not null and one.name <> 'secret' then
      if one.known_readers is null then
        execute format('create policy reader on holdfast.%I for select to %s using (true)', one.name, readers);
      elsif one.known_readers is distinct from readers then
        execute format('alter policy reader on holdfast.%I to %s', one.name, readers);
      end if;
    end if;
    if one.has_engine is null then
      execute format('create policy engine on holdfast.%I to %s using (true) with check (true)', one.name, engines);
    elsif one.known_engines is distinct from engines then
      execute format('alter policy engine on holdfast.%I to %s', one.name, engines);
    end if;
    if not one.is_forced then
      execute format('alter table holdfast.%1$I enable row level security, force row level security', one.name);
    end if;
    if has_role and one.rule is not null and not one.has_tenant then
      execute format('create policy tenant on holdfast.%I to holdfast_tenant using (%s) with check (%2$s)',
        one.name, one.rule);
      execute format('grant %s on holdfast.%I to holdfast_tenant', one.rights, one.name);
    end if;
  end loop;

  -- Only roles that may enqueue need spans of ids.
  revoke execute on function holdfast.take_span(bigint) from public;
  execute format('grant execute on function holdfast.take_span(bigint) to %s', engines);
  if has_role then
    grant execute on function holdfast.take_span(bigint) to holdfast_tenant;
  end if;
  if others is not null then
    for one in
      select c.relname as name
      from pg_class c
      where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'v'
    loop
      execute format('grant select on holdfast.%I to %s', one.name, others);
    end loop;
  end if;

  if has_role and not has_schema_privilege('holdfast_tenant', 'holdfast', 'usage') then
    grant usage on schema holdfast to holdfast_tenant;
  end if;
  if has_role then
    -- Views run with the rights of the reader, so they need no policies of their own.
    for one in
      select c.relname as name, case c.relkind when 'v' then 'select' else 'usage' end as rights,
        case c.relkind when 'v' then 'table' else 'sequence' end as kind
      from pg_class c
      where c.relnamespace = 'holdfast'::regnamespace
        and case c.relkind
          when 'v' then not has_table_privilege('holdfast_tenant', c.oid, 'select')
            and 'security_invoker=true' = any(c.reloptions)
          when 'S' then c.relname in ('task_id', 'guard_id') and not has_sequence_privilege('holdfast_tenant', c.oid, 'usage')
          else false
        end
    loop
      execute format('grant %s on %s holdfast.%I to holdfast_tenant', one.rights, one.kind, one.name);
    end loop;
  end if;
  return has_role;
end $$;

select holdfast.secure_tenants();
