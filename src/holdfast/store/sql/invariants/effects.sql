-- name: an_effect_has_one_key() -> rows
-- An effect requested under one name and key, or as the n-th of its name in a task, has one idempotency key (E1).
select e.tenant_id, e.name, e.user_key, count(*) as keys
from holdfast.effect e
group by e.tenant_id, e.name, e.user_key, case when e.user_key is null then (e.task_id, e.ordinal) end
having count(*) > 1;

-- name: an_effect_was_sent_by_an_attempt() -> rows
-- Every effect was opened by an attempt that had the lease for it (E2).
select e.task_id, e.key
from holdfast.effect e
left join holdfast.live t on t.task_id = e.task_id and t.lease_token = e.lease_token
left join holdfast.attempt a on a.task_id = e.task_id and a.lease_token = e.lease_token
left join holdfast.failure f on f.task_id = e.task_id and f.lease_token = e.lease_token
where coalesce(t.attempt, a.attempt, f.attempt) is distinct from e.attempt;

-- name: an_effect_without_an_answer_is_shown_as_unknown() -> rows
-- An effect that an ended attempt left without an answer is shown as unknown, never as pending or done (E3).
select e.task_id, e.key, v.state
from holdfast.effect e
join holdfast.tenant n on n.tenant_id = e.tenant_id
left join holdfast.effects v on v.idempotency_key = e.key and v.tenant = n.name
left join holdfast.live t on t.task_id = e.task_id and t.lease_token = e.lease_token and t.state = 'r'
where e.state in ('p', 'u') and t.task_id is null and v.state is distinct from 'unknown';

-- name: a_step_was_kept_by_an_attempt() -> rows
-- Every stored step has the attempt that stored it (E2).
select s.task_id, s.name
from holdfast.step s
left join holdfast.live t on t.task_id = s.task_id and t.attempt = s.attempt
left join holdfast.attempt a on a.task_id = s.task_id and a.attempt = s.attempt
left join holdfast.failure f on f.task_id = s.task_id and f.attempt = s.attempt
where coalesce(t.task_id, a.task_id, f.task_id) is null;
