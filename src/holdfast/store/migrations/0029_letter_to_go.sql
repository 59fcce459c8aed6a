-- Letters that could go again: the rule is here once, for whoever counts, plans or releases them.

-- The newest letter of each task, if it is open or was left and may be retried, as long as the task rests failed (an open
-- one's does) and its run, if it has one, is there and was not canceled. Each letter is asked by key, whatever statistics
-- say: most who ask want the first few of many.
create view holdfast.letter_to_go with (security_invoker = true) as
select d.dead_letter_id, d.task_id, d.run_id, d.opened_at, d.tenant_id, d.lane_id, d.node_no, d.dispatches, d.state,
  d.fingerprint
from holdfast.dead_letter d
where d.state in ('open', 'ignored')
  and 'retry' = any(d.recovery_options)
  and (d.state = 'open' or holdfast.rests_failed(d.task_id, d.run_id, d.node_no))
  and (d.run_id is null or exists (select from holdfast.run r where r.run_id = d.run_id and r.canceled_at is null offset 0))
  and d.dead_letter_id = (select max(n.dead_letter_id) from holdfast.dead_letter n where n.task_id = d.task_id);
