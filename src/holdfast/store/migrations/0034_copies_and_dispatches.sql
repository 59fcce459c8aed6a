-- Both ends of a copy's link, and when a worker was asked for.

-- Which tasks are copies of one. Only copies are in it: a task that is none costs its enqueue one look at a null.
-- Built partition by partition, the one that takes new tasks last, so that they wait for that one only; the parent, whose
-- lock all of them would wait for, when there is nothing left to build.
do $$
declare
  one record;
begin
  for one in select b.block from holdfast.block b order by b.block loop
    execute format(
      'create index body_%1$s_copies on holdfast.body_%1$s (original_task_id, task_id) where original_task_id is not null',
      one.block
    );
  end loop;
  create index body_copies on only holdfast.body (original_task_id, task_id) where original_task_id is not null;
  -- From here on no partition comes; one that came meanwhile is as good as empty.
  for one in select b.block from holdfast.block b order by b.block loop
    execute format(
      'create index if not exists body_%1$s_copies on holdfast.body_%1$s (original_task_id, task_id) where original_task_id is not null',
      one.block
    );
    execute format('alter index holdfast.body_copies attach partition holdfast.body_%s_copies', one.block);
  end loop;
end $$;

create view holdfast.copies with (security_invoker = true) as
select b.original_task_id::text as original_execution, b.task_id::text as task_id, n.name as tenant, b.created_at
from holdfast.body b
join holdfast.tenant n on n.tenant_id = b.tenant_id
where b.original_task_id is not null;

-- When a worker was first asked for, of attempts whose worker was launched and is over: until then their launch says it.
-- An attempt that a worker pulled has no row: it was asked for by whoever began it. Goes with the block of its task.
create table holdfast.dispatched (
  task_id bigint not null,
  attempt int not null,
  tenant_id int not null,
  at timestamptz not null,
  primary key (task_id, attempt)
);

-- As before, and with a block go the dispatches of its tasks.
create or replace function holdfast.drop_block(which int) returns void language plpgsql as $$
begin
  delete from holdfast.idempotency i using holdfast.block b
  where b.block = which and i.task_id between b.first_id and b.last_id;
  delete from holdfast.note n using holdfast.block b
  where b.block = which and n.task_id between b.first_id and b.last_id;
  delete from holdfast.dispatched d using holdfast.block b
  where b.block = which and d.task_id between b.first_id and b.last_id;
  -- Effects and steps live as long as the task that last sent or kept them.
  delete from holdfast.effect e using holdfast.block b
  where b.block = which and e.task_id between b.first_id and b.last_id;
  delete from holdfast.step s using holdfast.block b
  where b.block = which and s.task_id between b.first_id and b.last_id;
  -- Nothing of this block is live, failed or canceled any more, so these are the stumbles of tasks that completed.
  delete from holdfast.failure f using holdfast.block b
  where b.block = which and f.task_id between b.first_id and b.last_id;
  delete from holdfast.run r using holdfast.block b
  where b.block = which and r.run_id between b.first_id and b.last_id;
  execute format('drop table if exists holdfast.body_%s, holdfast.attempt_%s, holdfast.node_%s', which, which, which);
  -- After the tables: who counted before them has committed, and who counts after them finds nothing.
  delete from holdfast.completed c using holdfast.block b
  where b.block = which and c.bucket between b.first_id / 10000000000 and b.last_id / 10000000000;
  delete from holdfast.block b where b.block = which;
end $$;

create function holdfast.dispatched_at(of_task bigint, of_attempt int, began timestamptz) returns timestamptz
  language sql stable as $$
  select coalesce(
    (select h.created_at from holdfast.launch h where h.task_id = of_task and h.attempt = of_attempt),
    (select d.at from holdfast.dispatched d where d.task_id = of_task and d.attempt = of_attempt),
    began
  )
$$;

-- As before, with when a worker was asked for: where workers pull, that is when the attempt began.
create or replace view holdfast.attempts with (security_invoker = true) as
select t.task_id::text as task_id, t.attempt, 'running' as state, t.worker_id, t.lease_token, t.started_at,
  null::timestamptz as ended_at, null::text as code, null::text as type, null::text as message, null::text as traceback,
  null::text as decision, null::text as reason, null::text as rule, null::text as sentence, null::timestamptz as retry_at,
  null::bytea as output, null::text as class, holdfast.dispatched_at(t.task_id, t.attempt, t.started_at) as dispatched_at
from holdfast.live t
where t.state in ('r', 'v')
union all
select a.task_id::text, a.attempt, case a.state when 'c' then 'completed' when 'x' then 'canceled' else 'released' end,
  a.worker_id, a.lease_token, a.started_at, a.ended_at, null, null, null, null, null, null, null, null, null, a.output, null,
  holdfast.dispatched_at(a.task_id, a.attempt, a.started_at)
from holdfast.attempt a
union all
select f.task_id::text, f.attempt, case f.state when 'f' then 'failed' when 't' then 'timed_out' else 'lost' end,
  f.worker_id, f.lease_token, f.started_at, f.ended_at, f.code, f.type, f.message, f.traceback, f.decision, f.reason,
  f.rule, f.sentence, f.retry_at, null, coalesce(f.class, f.reason),
  holdfast.dispatched_at(f.task_id, f.attempt, f.started_at)
from holdfast.failure f;
