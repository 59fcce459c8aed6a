-- Letters that were left are taken up again with their group, and a letter is open only while its task rests.

create index dead_letter_waiting on holdfast.dead_letter (tenant_id, fingerprint, dead_letter_id)
  where state in ('open', 'ignored');

-- Whether a task rests failed and could be run again: its run, if it has one, is there and was not canceled.
create function holdfast.can_go_again(dead_task_id bigint) returns boolean
  language sql stable
  return exists (
    select
    from holdfast.ended e
    left join holdfast.run r on r.run_id = e.run_id
    where e.task_id = dead_task_id and e.state = 'f'
      and (e.run_id is null or (r.run_id is not null and r.canceled_at is null))
  );

-- What `run retry` left behind so far. A success still resolves them.
update holdfast.dead_letter d
set state = 'ignored', disposition = 'ignored', actor = 'holdfast:migration', changed_at = holdfast.instant(),
  disposition_reason = 'its run was retried'
where d.state = 'open'
  and not exists (
    select
    from holdfast.ended e
    where e.task_id = d.task_id and e.state = 'f' and e.generation = d.generation
  )
  and not exists (
    select
    from holdfast.dead_letter o
    where (o.task_id = d.task_id or o.run_id = d.run_id) and o.dispatched_at >= d.opened_at
  );
