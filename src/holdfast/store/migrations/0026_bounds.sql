-- Bounds: for whom a launcher launches, as a server last said it, so that `why` can say that it is not for this task.
-- Null: for all. A server of an older version leaves them as they are.

alter table holdfast.launcher add column tenant_ids int[], add column actions text[];
