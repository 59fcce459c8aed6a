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
    bell = engine.bell
    bell.ring(lanes=[1])
    await bell.flush()
    failing = bell._session
    await failing.connection.execute(f"{TRAP} set search_path = trap, pg_catalog")
    bell.ring(lanes=[1])
    await bell.flush()
    assert failing.is_closed()
    bell.ring(lanes=[1])
    await bell.flush()
    assert not bell._session.is_closed()


async def test_a_bell_made_ready_has_its_connection_before_the_first_ring(engine):
    bell = engine.bell
    bell.make_ready()
    await bell.flush()
    ready = bell._session
    bell.ring(lanes=[1])
    await bell.flush()
    assert ready is not None and bell._session is ready


async def test_a_ring_after_the_end_connects_no_more(engine):
    bell = engine.bell
    await bell.close()
    bell.ring(lanes=[1])
    await bell.flush()
    assert bell._session is None
