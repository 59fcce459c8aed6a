-- The last firing of a schedule is found without reading the slots it skipped since.
create index slot_fired on holdfast.slot (schedule_id, slot_at) where state = 'f';
