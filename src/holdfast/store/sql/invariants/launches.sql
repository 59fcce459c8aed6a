-- name: a_reserved_attempt_has_a_launch() -> rows
-- Every reserved task has a launch of that very attempt.
select t.task_id, t.attempt
from holdfast.live t
left join holdfast.launch h on h.task_id = t.task_id and h.attempt = t.attempt and h.state in ('p', 'l')
where t.state = 'v' and h.task_id is null;

-- name: a_running_attempt_spent_its_token() -> rows
-- The launch of a running attempt has no unused token.
select t.task_id, t.attempt
from holdfast.live t
join holdfast.launch h on h.task_id = t.task_id and h.attempt = t.attempt
where t.state = 'r' and h.state in ('p', 'l');

-- name: a_failed_launch_is_due_again() -> rows
-- A failed launch has no reservation, and no launch failed more often than allowed.
select h.task_id, h.attempt, h.failures
from holdfast.launch h
join holdfast.live t on t.task_id = h.task_id and t.attempt = h.attempt
where h.state = 'f' and t.state = 'v'
union all
select h.task_id, h.attempt, h.failures
from holdfast.launch h
where h.failures > 5 or (h.state = 'f' and h.failures = 0);

-- name: an_attempt_has_one_slot() -> rows
-- No launch has two slots, and the slot of a launch is one of its launcher.
select s.launcher, s.slot, h.task_id
from holdfast.launch_slot s
join holdfast.launch h on h.holder = s.holder
where (s.task_id, s.attempt, s.launcher) is distinct from (h.task_id, h.attempt, h.launcher);
