-- Tenants: limits of each, workers that belong to one, and walls between them that hold also where a statement forgets.
--
-- Who works for one tenant runs every transaction as the role `holdfast_tenant`, with the tenant's number in the setting
-- `holdfast.tenant_id`; row-level security shows that role the rows of that tenant and no others. Everybody else who
-- works here is the engine: the owner of the tables, and roles that were granted writing to them.

alter table holdfast.tenant
  add column max_running int check (max_running > 0),
  add column max_queued int check (max_queued > 0);

-- Workers that know nothing of tenants work for the first.
alter table holdfast.worker add column tenant_id int not null default 1 references holdfast.tenant;
create index lane_tenant_action on holdfast.lane (tenant_id, action);

-- A part belongs to the tenant of its generation.
alter table holdfast.dataset_generation add constraint generation_tenant unique (tenant_id, generation_id);
alter table holdfast.dataset_stage add constraint stage_tenant
  foreign key (tenant_id, generation_id) references holdfast.dataset_generation (tenant_id, generation_id)
  on delete cascade;
alter table holdfast.dataset_commit add constraint commit_tenant
  foreign key (tenant_id, generation_id) references holdfast.dataset_generation (tenant_id, generation_id)
  on delete cascade;

-- The tenant that this transaction works for; null where it works for none.
create function holdfast.my_tenant() returns int
  language sql stable parallel safe
  return nullif(current_setting('holdfast.tenant_id', true), '')::int;

-- Whether a function that runs with the owner's rights was called by the engine, or else on behalf of this tenant. Who may
-- only read is neither, though everybody may call it.
create function holdfast.is_for(tenant int) returns boolean
  language sql stable parallel safe
  return case
    when current_setting('role') = 'holdfast_tenant' then tenant is not distinct from holdfast.my_tenant()
    else has_table_privilege(
      coalesce(nullif(current_setting('role'), 'none'), session_user::text)::name, 'holdfast.live', 'insert'
    )
  end;

-- Ids of spans come two steps of a sequence at a time: nobody but this function may set it.
alter function holdfast.take_span(bigint) security definer set search_path = pg_catalog, pg_temp;

-- What shows, fills and drops tables of datasets does so as their owner, and only for the tenant they belong to: all of
-- it asks here for their names. Making them is left to apps, which are the engine.
create or replace function holdfast.generation_names(
  which int, out rows_table text, out stage_table text, out column_list text, out is_keyed boolean
) language plpgsql stable as $$
begin
  select format('%I.%I', d.place, d.name || '_v' || g.version),
    format('%I.%I', d.place, d.name || '_v' || g.version || '_staged'),
    (select string_agg(quote_ident(c.name), ', ' order by c.nth) from unnest(g.columns) with ordinality as c (name, nth)),
    cardinality(g.key) > 0
  into rows_table, stage_table, column_list, is_keyed
  from holdfast.dataset_generation g
  join holdfast.dataset d on d.dataset_id = g.dataset_id
  where g.generation_id = which and holdfast.is_for(g.tenant_id);
  if not found then
    raise exception 'There is no generation %.', which using errcode = 'no_data_found';
  end if;
end $$;
alter function holdfast.unmake_generation(int) security definer set search_path = pg_catalog, pg_temp;
alter function holdfast.move_staged(int, bigint, uuid, int, text, text) security definer set search_path = pg_catalog, pg_temp;
alter function holdfast.take_back(int, text, bigint) security definer set search_path = pg_catalog, pg_temp;
alter function holdfast.drop_staged(int, bigint, uuid, int) security definer set search_path = pg_catalog, pg_temp;
alter function holdfast.count_rows(int, text) security definer set search_path = pg_catalog, pg_temp;

create or replace function holdfast.show_generation(which int, is_first boolean) returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
declare
  d holdfast.dataset;
  named record;
  shown text;
  query text;
  granted aclitem[];
  one record;
begin
  select * into strict d from holdfast.dataset where dataset_id = which and holdfast.is_for(tenant_id);
  select n.* into named
  from holdfast.dataset_generation g, holdfast.generation_names(g.generation_id) n
  where g.dataset_id = which and g.version = d.current_version;
  shown := format('%I.%I', d.place, d.name);
  query := format('select %s from %s where (select holdfast.is_whole(%s, %s))',
    named.column_list, named.rows_table, which, d.current_version);
  if is_first then
    execute format('create view %s as %s', shown, query);
    return;
  end if;
  begin
    execute format('create or replace view %s as %s', shown, query);
    return;
  exception when invalid_table_definition then
    null;
  end;
  select c.relacl into granted from pg_class c where c.oid = shown::regclass;
  execute format('drop view %s', shown);
  execute format('create view %s as %s', shown, query);
  for one in
    select a.privilege_type, a.is_grantable, case a.grantee when 0 then 'public' else a.grantee::regrole::text end as grantee
    from aclexplode(granted) a
  loop
    execute format('grant %s on %s to %s%s', one.privilege_type, shown, one.grantee,
      case when one.is_grantable then ' with grant option' else '' end);
  end loop;
end $$;

-- Make the role if it can be made, and put every table of the schema behind its wall: row-level security, forced, one
-- policy for the engine and one for the tenant. To be run again after tables were added, after the role was made by hand
-- and after another role was granted writing; `holdfast migrate` does. Answers whether the role is there.
--
-- A table is reached by the tenant's role only where a rule is known: its own tenant_id, or the row it hangs on. What a
-- later migration adds without either stays out of its reach, and so do partitions, which have no grants of their own.
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
    -- Who made a role may grant it, and from PostgreSQL 16 on is not yet allowed to become it.
    if not pg_has_role(current_user, 'holdfast_tenant',
      case when current_setting('server_version_num')::int >= 160000 then 'set' else 'member' end)
    then
      execute format('grant holdfast_tenant to %I', current_user);
    end if;
  exception
    -- The migration of another database on this server made it in the same moment.
    when unique_violation or duplicate_object or internal_error then null;
    -- Then an administrator must: `holdfast doctor` says how.
    when insufficient_privilege then null;
  end;
  has_role := exists (select from pg_roles r where r.rolname = 'holdfast_tenant');

  select string_agg(distinct quote_ident(r.rolname), ', ') into engines
  from pg_class c
  left join lateral aclexplode(c.relacl) a on a.privilege_type = 'INSERT'
  join pg_roles r on r.oid in (c.relowner, a.grantee) and r.rolname <> 'holdfast_tenant'
  where c.oid = 'holdfast.live'::regclass;

  -- Who works here without owning the tables gets what later migrations add; who only reads goes on seeing every row.
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
        -- Of the installation, and no secret.
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
    -- The hot table last: it is held shortest.
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

  -- Only who may enqueue needs ids by the span.
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
    -- Views look with the rights of whoever asks, so they need no rule of their own.
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
