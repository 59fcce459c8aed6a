-- name: a_fired_slot_has_its_task_or_run() -> rows
-- The task or run that a slot fired exists, as long as history of that time is kept.
select f.schedule_id, f.slot_at
from holdfast.slot f
join holdfast.block b on coalesce(f.task_id, f.run_id) between b.first_id and b.last_id
left join holdfast.body d on d.task_id = f.task_id
left join holdfast.run r on r.run_id = f.run_id
where f.state = 'f' and d.task_id is null and r.run_id is null;

-- name: no_slot_fires_twice() -> rows
-- A task or run belongs to one slot; the primary key gives a slot at most one.
select coalesce(f.task_id, f.run_id) as id
from holdfast.slot f
where f.state = 'f'
group by 1
having count(*) > 1;

-- name: due_schedules_fire() -> rows
-- Warning: a schedule has been due for more than a minute and was not processed. Does any worker or server run?
select s.schedule_id, s.name
from holdfast.schedule s
where s.look_at < holdfast.instant() - interval '1 minute';
