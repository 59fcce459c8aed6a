-- A campaign rests after each pass, in proportion to what the pass took, whoever makes the next one: so it takes a share of
-- one connection's time, however many processes there are and however slow the database is. Processes of older versions do
-- not look at it, and pass over a campaign as before.
alter table holdfast.campaign add column rests_until timestamptz;
