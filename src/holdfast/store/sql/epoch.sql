-- name: look_at_server
-- The newest epoch, why it is not that of this server (null where it is), and whether any epoch since $1 began for more
-- than a restart.
select n.epoch, n.cause, exists (select from holdfast.epoch e where e.epoch > $1 and e.cause <> 'restarted') as is_other
from holdfast.current_epoch() n;

-- name: prepare_epoch
-- Make the block of ids that the epoch of this server begins in, if it needs one. Committed before the epoch begins.
select holdfast.prepare_epoch();

-- name: begin_epoch
-- Begin the epoch of this server, unless it has begun. Answers why, if it began here, and how many workers were retired.
select b.entered as epoch, b.why as cause, b.retired
from holdfast.begin_epoch() b;

-- name: read_epochs
-- Every epoch, with the ids that were drawn in it.
select e.epoch, e.began_at, e.cause, e.tag::text as tag, e.first_task_id, e.middle_id, e.first_span
from holdfast.epoch e
order by e.epoch;

-- name: epoch_identities
-- The servers of the newest epoch and of the one before it, as the audit log shows them.
select e.epoch, e.cause, e.system_identifier::text as system_identifier, e.timeline, e.database_id
from holdfast.epoch e
order by e.epoch desc
limit 2;

-- name: checkup_epoch
-- The newest epoch, whether it is that of this server, and whether what tells servers apart can be read.
select e.epoch, e.began_at, e.cause, n.cause as differs,
  s.system_identifier is not null and s.timeline is not null as is_legible,
  extract(epoch from holdfast.instant() - e.began_at)::double precision as age_seconds
from holdfast.epoch e
cross join holdfast.current_epoch() n
cross join holdfast.server_identity() s
where e.epoch = n.epoch;
