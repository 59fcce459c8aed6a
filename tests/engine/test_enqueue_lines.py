"""Many inputs go to the server as lines of one text where they can; what is stored is the same either way."""

from __future__ import annotations

import uuid

import asyncpg
import pytest

from holdfast.codec import json_codec
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle.tasks import enqueue as verb
from holdfast.engine.lifecycle.tasks.enqueue import EnqueueOrder, enqueue, intern
from holdfast.settings.settings import Settings
from holdfast.store.database import Database
from holdfast.store.migrate import migrate
from holdfast.testing.databases import with_database
from holdfast.testing.run_coroutine import run_coroutine

ORDER = EnqueueOrder(tenant_id=1, queue="default", action="shop.pack", policy=RetryPolicy())
ODD = ["", "\n", "\r\n", "\\n", "\\", "'", '"', "\u2028\u2029\x85\x0b\x1f", "ß", "🦑", "\\x00", "%s $1", "\ue000"]


async def stored(url, inputs) -> list[bytes]:
    """Accept inputs; answers what the database has of them, by the ids that the caller was given."""
    async with Engine(url, Settings()) as engine:
        accepted = await enqueue(engine, await intern(engine.catalog, ORDER), inputs)
        rows = await engine.database.fetch(
            "select b.input from unnest($1::bigint[]) with ordinality as g (task_id, n)"
            " join holdfast.body b using (task_id) order by g.n",
            accepted.task_ids,
        )
    return [row["input"] for row in rows]


@pytest.mark.parametrize("inputs", [ODD, ODD[:1]], ids=["many", "one"])
async def test_every_input_arrives_as_it_is_and_in_its_place(holdfast_url, inputs):
    encoded = json_codec.encode_many([{"text": text, text: 1} for text in inputs], bytes_max=10_000, what="input")
    assert await stored(holdfast_url, encoded) == encoded
    assert verb._lines(encoded) is not None


@pytest.mark.parametrize(
    "others",
    [b'{\n"a": 1}', b'"\xe9"', b'"\0"'],
    ids=["with a line end", "not UTF-8", "with a zero"],
)
async def test_what_somebody_else_encoded_may_be_no_line(holdfast_url, others):
    inputs = [b"1", others, b"{}"]
    assert await stored(holdfast_url, inputs) == inputs
    assert verb._lines(inputs) is None


async def test_large_inputs_are_not_copied_once_more(holdfast_url, monkeypatch):
    monkeypatch.setattr(verb, "_LINES_BYTES_MAX", 4)
    for inputs, lines in (([b"1", b"222"], "1\n222"), ([b"1", b"2222"], None)):
        assert verb._lines(inputs) == lines
        assert await stored(holdfast_url, inputs) == inputs


@pytest.fixture
def in_latin_1(holdfast_databases):
    """A database that lacks most characters."""
    name = f"holdfast_test_{uuid.uuid4().hex}"
    url = with_database(holdfast_databases.server_url, name)

    async def make():
        connection = await asyncpg.connect(holdfast_databases.server_url)
        await connection.execute(f"create database {name} encoding 'LATIN1' locale 'C' template template0")
        await connection.close()
        database = await Database(url, sessions_max=1).open()
        await migrate(database)
        await database.close()

    run_coroutine(make())
    yield url
    run_coroutine(holdfast_databases.drop(url))


async def test_a_database_in_another_encoding_keeps_every_character(in_latin_1):
    inputs = json_codec.encode_many([{"text": text} for text in ODD], bytes_max=10_000, what="input")
    assert await stored(in_latin_1, inputs) == inputs
