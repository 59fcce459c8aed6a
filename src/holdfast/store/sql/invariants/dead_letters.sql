-- name: a_failed_task_has_a_dead_letter() -> rows
-- A task that failed for good and is marked as having a dead letter has one of its generation.
select e.task_id
from holdfast.ended e
left join holdfast.dead_letter d on d.task_id = e.task_id and d.generation = e.generation and d.attempts = e.attempt
where e.state = 'f' and e.has_letter and d.dead_letter_id is null;

-- name: an_open_dead_letter_belongs_to_a_failed_task() -> rows
-- An open dead letter belongs to a task that is still failed in the same generation, unless another dead letter of the
-- task or its run was dispatched since (X1), or to a node that failed without a task.
with task_dispatched as (
  select d.task_id, max(d.dispatched_at) as last_at
  from holdfast.dead_letter d
  group by d.task_id
),
run_dispatched as (
  select d.run_id, max(d.dispatched_at) as last_at
  from holdfast.dead_letter d
  group by d.run_id
)
select d.dead_letter_id
from holdfast.dead_letter d
left join holdfast.ended e on e.task_id = d.task_id and e.state = 'f' and e.generation = d.generation
left join task_dispatched t on t.task_id = d.task_id and t.last_at >= d.opened_at
left join run_dispatched r on r.run_id = d.run_id and r.last_at >= d.opened_at
left join holdfast.node n on n.run_id = d.run_id and n.node_no = d.node_no and n.state = 'f'
  and n.generation = d.generation and d.task_id = d.run_id + 1 + d.node_no
where d.state = 'open' and e.task_id is null and t.task_id is null and r.run_id is null and n.run_id is null;

-- name: a_dead_letter_belongs_to_a_failure() -> rows
-- Every unresolved dead letter has the failure that opened it.
select d.dead_letter_id
from holdfast.dead_letter d
left join holdfast.failure f on f.task_id = d.task_id and f.attempt = d.attempts and f.decision = 'stop'
where d.state <> 'resolved' and f.task_id is null;

-- name: a_success_leaves_no_dead_letter_open() -> rows
-- A task that completed after a dead letter was opened has resolved it.
select d.dead_letter_id
from holdfast.dead_letter d
join holdfast.attempt a on a.task_id = d.task_id and a.state = 'c' and a.generation > d.generation
where d.state <> 'resolved';

-- name: a_dead_letter_follows_an_older_one() -> rows
-- The predecessor of a dead letter is an older one of the same task.
select d.dead_letter_id
from holdfast.dead_letter d
join holdfast.dead_letter p on p.dead_letter_id = d.previous_id
where p.task_id <> d.task_id or p.dead_letter_id >= d.dead_letter_id;

-- name: an_idle_dead_letter_is_swept() -> rows
-- A dead letter whose task failed again waits for the sweep, or belongs to a campaign that counts it.
select d.dead_letter_id
from holdfast.dead_letter d
join holdfast.ended e on e.task_id = d.task_id and e.state = 'f' and e.generation > d.generation
where d.state = 'retrying' and not d.wants_sweep and e.has_letter;

-- name: requested_dead_letters_are_dispatched() -> rows
-- Warning: the retry of a dead letter was requested more than ten minutes ago and its task is still failed or canceled.
-- Does any server run?
select d.dead_letter_id
from holdfast.dead_letter d
join holdfast.ended e on e.task_id = d.task_id and e.state in ('f', 'x')
where (d.wants_sweep or (e.state = 'x' and d.state = 'retrying')) and d.changed_at < holdfast.instant() - interval '10 minutes'
  and e.ended_at < holdfast.instant() - interval '10 minutes';

-- name: campaigns_count_their_dead_letters() -> rows
-- A campaign counts exactly the dead letters that it released, and their outcomes.
select c.campaign_id
from holdfast.campaign c
left join (
  select m.campaign_id, count(*) as released, count(*) filter (where m.outcome = 'succeeded') as succeeded,
    count(*) filter (where m.outcome = 'returned') as returned, count(*) filter (where m.outcome = 'failed') as failed,
    count(*) filter (where m.outcome = 'canceled') as canceled, count(*) filter (where m.outcome = 'dropped') as dropped
  from holdfast.campaign_letter m
  group by m.campaign_id
) m on m.campaign_id = c.campaign_id
where (c.released, c.succeeded, c.returned, c.failed, c.canceled, c.dropped) is distinct from (
  coalesce(m.released, 0), coalesce(m.succeeded, 0), coalesce(m.returned, 0), coalesce(m.failed, 0),
  coalesce(m.canceled, 0), coalesce(m.dropped, 0)
);

-- name: a_campaign_lists_its_dead_letters() -> rows
-- A dead letter that a campaign released is on that campaign's list.
select d.dead_letter_id
from holdfast.dead_letter d
left join holdfast.campaign_letter m on m.campaign_id = d.campaign_id and m.dead_letter_id = d.dead_letter_id
where d.campaign_id is not null and m.dead_letter_id is null;
