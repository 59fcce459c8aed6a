"""The bell rings on a connection of its own; one that failed it is given back to the server."""

from __future__ import annotations

# Called instead of the server's own by a session that finds this schema first.
TRAP = """
create schema trap;
create function trap.pg_notify(text, text) returns void language plpgsql as $$
begin
  raise exception 'canceled' using errcode = 'query_canceled';
end $$;
"""


async def test_a_connection_that_failed_a_ring_is_closed_and_the_next_ring_has_another(engine):
    notifier = engine.notifier
    notifier.notify(lanes=[1])
    await notifier.flush()
    failing = notifier._session
    await failing.connection.execute(f"{TRAP} set search_path = trap, pg_catalog")
    notifier.notify(lanes=[1])
    await notifier.flush()
    assert failing.is_closed()
    notifier.notify(lanes=[1])
    await notifier.flush()
    assert not notifier._session.is_closed()


async def test_a_bell_made_ready_has_its_connection_before_the_first_ring(engine):
    notifier = engine.notifier
    notifier.make_ready()
    await notifier.flush()
    ready = notifier._session
    notifier.notify(lanes=[1])
    await notifier.flush()
    assert ready is not None and notifier._session is ready


async def test_a_ring_after_the_end_connects_no_more(engine):
    notifier = engine.notifier
    await notifier.close()
    notifier.notify(lanes=[1])
    await notifier.flush()
    assert notifier._session is None
