-- name: check_server(known_epoch) -> row
-- nullable: cause
-- Return the newest epoch, why it is not that of this server (null if it is), and whether any epoch since @known_epoch began for
-- more than a restart.
select n.epoch, n.cause, exists (select from holdfast.epoch e where e.epoch > @known_epoch and e.cause <> 'restarted') as is_other
from holdfast.current_epoch() n;

-- name: prepare_epoch() -> nothing
-- Create the block of ids in which the epoch of this server begins, if it needs one. Committed before the epoch begins.
select holdfast.prepare_epoch();

-- name: begin_epoch() -> row
-- nullable: cause
-- Begin the epoch of this server, unless it has begun. Returns the cause, if it began here, and how many workers were
-- retired.
select b.entered as epoch, b.why as cause, b.retired
from holdfast.begin_epoch() b;

-- name: read_epochs() -> rows
-- Return every epoch, with the ids that were drawn in it.
select e.epoch, e.began_at, e.cause, e.tag::text as tag, e.first_task_id, e.middle_id, e.first_span
from holdfast.epoch e
order by e.epoch;

-- name: epoch_identities() -> rows
-- Return the servers of the newest epoch and of the one before it, for the audit log.
select e.epoch, e.cause, e.system_identifier::text as system_identifier, e.timeline, e.database_id
from holdfast.epoch e
order by e.epoch desc
limit 2;

-- name: checkup_epoch() -> row
-- nullable: differs
-- Return the newest epoch, whether it is that of this server, and whether the server's identity can be read.
select e.epoch, e.began_at, e.cause, n.cause as differs,
  s.system_identifier is not null and s.timeline is not null as is_legible,
  extract(epoch from holdfast.instant() - e.began_at)::double precision as age_seconds
from holdfast.epoch e
cross join holdfast.current_epoch() n
cross join holdfast.server_identity() s
where e.epoch = n.epoch;
