"""Bad input of every kind: a clear error with its code, nothing stored, nothing lost, and the worker goes on."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass, replace
from typing import TypedDict

import msgspec
import pytest
from tests.by_sql import by_sql, declare

import holdfast as hf
from holdfast.client.client import Client
from holdfast.errors import HoldfastError, Invalid, InvalidSettings, NotFound, TaskFailed, Unavailable
from holdfast.settings.settings import Settings, WorkerSettings
from holdfast.store.database import Database, _check_version
from holdfast.testing.idle import run_until_idle

app = hf.App("bad")


@app.action
async def anything(**given: object) -> object:
    return given.get("value")


@app.action
async def typed(number: int, name: str = "x") -> int:
    return number


class Model:
    """As pydantic's models are used."""

    @classmethod
    def model_validate(cls, value: object) -> Model:
        if not isinstance(value, dict) or not isinstance(value.get("n"), int):
            raise ValueError("n is no integer")
        return cls()


@dataclass
class Record:
    n: int


class Struct(msgspec.Struct):
    n: int


class Row(TypedDict):
    n: int


@app.action
async def shaped(
    model: Model | None = None,
    record: Record | None = None,
    struct: Struct | None = None,
    row: Row | None = None,
    numbers: list[int] | None = None,
) -> None: ...


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.fixture
async def client(engine):
    app.configure(Settings(url=engine.database.url))
    async with app.client() as opened:
        yield opened


async def stored(engine) -> list[int]:
    """How many rows each table has that an enqueue could touch."""
    tables = ("live", "body", "idempotency", "lane", "queue", "policy", "event")
    return [await engine.database.fetchval(f"select count(*) from holdfast.{table}") for table in tables]


PAYLOADS = {
    "too large": ("x" * (1024 * 1024 + 1), "payload_too_large"),
    "too deep": (nested(101), "payload_too_deep"),
    "endless": (nested(200_000), "payload_too_deep"),
    "NUL": ("a\x00b", "payload_has_nul"),
    "NUL in a key": ({"a\x00b": 1}, "payload_has_nul"),
    "NaN": (math.nan, "payload_not_finite"),
    "infinity": (math.inf, "payload_not_finite"),
    "minus infinity deep inside": ({"a": [1, {"b": -math.inf}]}, "payload_not_finite"),
    "1e309": (float("1e309"), "payload_not_finite"),
    "lone surrogate": ("\ud800", "payload_not_json"),
    "lone surrogate in a key": ({"\udfff": 1}, "payload_not_json"),
    "integer of 5000 digits": (10**5000, "payload_not_json"),
    "function": (lambda: 1, "payload_not_json"),
    "object": (object(), "payload_not_json"),
    "exception": (ValueError("x"), "payload_not_json"),
}


async def test_a_bad_payload_is_refused_and_nothing_is_stored(client, engine):
    for what, (payload, code) in PAYLOADS.items():
        with pytest.raises(Invalid) as refused:
            await client.enqueue(anything, value=payload)
        assert refused.value.code == code, what
        with pytest.raises(Invalid):
            await client.enqueue_many(anything, [{"value": 1}, {"value": payload}])
        with pytest.raises(Invalid):
            await client.enqueue(anything.options(key="order-1"), value=payload)
        assert (await stored(engine))[:3] == [0, 0, 0], what


async def test_a_payload_that_contains_itself_is_refused(client, engine):
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(Invalid):
        await client.enqueue(anything, value=loop)
    assert (await stored(engine))[0] == 0


GOOD_PAYLOADS = [
    "",
    " ",
    "\\u0000",
    "ünï©ødé \U0001f600",
    "'; drop table holdfast.live; --",
    2**63 - 1,
    2**64,
    10**400,
    -(2**63),
    1e308,
    5e-324,
    nested(99),
    {"": {"": []}},
    "x" * 1_000_000,
    [None, True, False, 0, -0.0],
]


async def test_odd_but_good_payloads_come_back_equal(client, engine):
    tasks = [await client.enqueue(anything, value=payload) for payload in GOOD_PAYLOADS]
    await run_until_idle(app, engine)
    for task, payload in zip(tasks, GOOD_PAYLOADS, strict=True):
        assert await task.result(timeout=5) == payload


async def test_names_an_action_does_not_take_are_refused(client, engine):
    for given in (
        {},
        {"number": 1, "other": 2},
        {"numbr": 1},
        {"number": 1, "'; drop table holdfast.live; --": 2},
    ):
        with pytest.raises(Invalid) as refused:
            await client.enqueue(typed, **given)
        assert refused.value.code == "invalid_input", given
    assert (await stored(engine))[0] == 0


WRONG_TYPES = [
    (typed, {"number": "seven"}, "`int`, got `str` - at `$.number`"),
    (shaped, {"model": {"n": "seven"}}, "n"),
    (shaped, {"record": {"n": "seven"}}, "`int`, got `str` - at `$.record.n`"),
    (shaped, {"struct": {"n": 1.5}}, "`int`, got `float` - at `$.struct.n`"),
    (shaped, {"row": {"n": []}}, "`int`, got `array` - at `$.row.n`"),
    (shaped, {"numbers": [1, "two"]}, "`int`, got `str` - at `$.numbers[1]`"),
]


async def test_a_value_of_another_type_is_refused_before_anything_is_stored(client, engine, subtests):
    for action, given, why in WRONG_TYPES:
        with subtests.test(action=action, given=given, why=why):
            before = await stored(engine)
            for enqueue in (client.enqueue(action, **given), client.enqueue_many(action, [given])):
                with pytest.raises(Invalid) as refused:
                    await enqueue
                assert refused.value.code == "invalid_input" and action.name in refused.value.detail
                assert why in refused.value.detail
            assert (await stored(engine))[0] == before[0]
            right = {"model": {"n": 1}, "record": Record(n=1), "struct": Struct(n=1), "row": {"n": 1}, "numbers": [1]}
            await client.enqueue(shaped, **right)


async def test_a_value_of_another_type_fails_that_task_alone(client, engine):
    wrong, right = await by_sql(client, typed.name, number="seven"), await client.enqueue(typed, number=7)
    await run_until_idle(app, engine)
    with pytest.raises(TaskFailed) as failed:
        await wrong.result(timeout=5)
    assert failed.value.fields["cause"] == "DAG_VALIDATION_INPUT_INVALID"
    assert await right.result(timeout=5) == 7


TASK_IDS = [
    "",
    " ",
    "0",
    "-1",
    "1e9",
    "1.0",
    "0x10",
    "１２",
    "²",
    "1_000",
    "+1",
    "None",
    "\x00",
    "\ud800",
    str(10**18),
    str(10**30),
    "9" * 10_000,
    "1; drop table holdfast.live",
    "' or '1'='1",
    "../../etc/passwd",
    10**30,
    -5,
    None,
    1.5,
    [],
]


async def test_an_absurd_task_id_names_no_task(client):
    for task_id in TASK_IDS:
        for call in (client.result, client.ending):
            with pytest.raises(NotFound) as missing:
                await call(task_id, timeout=5)
            assert missing.value.code == "task_not_found", ascii(task_id)[:20]
        for call in (client.cancel, client.retry):
            with pytest.raises(NotFound):
                await call(task_id)


OPTIONS = {
    "empty key": ({"key": ""}, "invalid_key"),
    "blank key": ({"key": "  "}, "invalid_key"),
    "huge key": ({"key": "x" * 257}, "invalid_key"),
    "NUL in key": ({"key": "a\x00"}, "invalid_key"),
    "surrogate in key": ({"key": "\ud800"}, "invalid_key"),
    "key of another type": ({"key": 7}, "invalid_key"),
    "empty queue": ({"queue": ""}, "invalid_name"),
    "huge queue": ({"queue": "q" * 129}, "invalid_name"),
    "queue with a space": ({"queue": "my queue"}, "invalid_name"),
    "queue as SQL": ({"queue": "x'; drop table holdfast.live; --"}, "invalid_name"),
    "queue with a newline": ({"queue": "x\n"}, "invalid_name"),
    "queue of another type": ({"queue": 7}, "invalid_name"),
    "priority too low": ({"priority": -1}, "invalid_priority"),
    "priority too high": ({"priority": 10}, "invalid_priority"),
    "huge priority": ({"priority": 10**30}, "invalid_priority"),
    "priority as text": ({"priority": "5"}, "invalid_priority"),
    "priority as truth": ({"priority": True}, "invalid_priority"),
    "negative delay": ({"delay": -1}, "invalid_delay"),
    "endless delay": ({"delay": math.inf}, "invalid_delay"),
    "delay that is no number": ({"delay": math.nan}, "invalid_delay"),
    "delay beyond ten years": ({"delay": "99999d"}, "invalid_delay"),
    "delay in no unit": ({"delay": "soon"}, "invalid_delay"),
    "delay of another type": ({"delay": []}, "invalid_delay"),
    "many tags": ({"tags": [str(n) for n in range(21)]}, "invalid_tag"),
    "empty tag": ({"tags": [""]}, "invalid_tag"),
    "huge tag": ({"tags": ["x" * 65]}, "invalid_tag"),
    "NUL in tag": ({"tags": ["a\x00"]}, "invalid_tag"),
    "tag of another type": ({"tags": [7]}, "invalid_tag"),
    "tags as one text": ({"tags": "abc"}, "invalid_tag"),
    "tags as a number": ({"tags": 7}, "invalid_tag"),
    "negative retries": ({"max_retries": -1}, "invalid_policy"),
    "endless retries": ({"max_retries": 10**9}, "invalid_policy"),
    "half a retry": ({"max_retries": 1.5}, "invalid_policy"),
    "retries as text": ({"max_retries": "3"}, "invalid_policy"),
    "no attempt": ({"max_attempts": 0}, "invalid_policy"),
    "attempts as text": ({"max_attempts": "3"}, "invalid_policy"),
    "no time": ({"timeout": 0}, "invalid_policy"),
    "negative time": ({"timeout": -1}, "invalid_duration"),
    "endless time": ({"timeout": math.inf}, "invalid_duration"),
}


async def test_an_absurd_option_is_refused_and_nothing_is_stored(client, engine):
    before = await stored(engine)
    for what, (options, code) in OPTIONS.items():
        with pytest.raises(Invalid) as refused:
            await client.enqueue(anything.options(**options), value=1)
        assert refused.value.code == code, what
        assert await stored(engine) == before, what


@pytest.mark.parametrize("name", ["", "a b", "x" * 200, "é", "a\x00", "x'; drop table holdfast.live; --"])
def test_an_absurd_name_makes_no_app_and_no_action(name):
    with pytest.raises(Invalid) as refused:
        hf.App(name)
    assert refused.value.code == "invalid_name"
    if name:
        with pytest.raises(Invalid):
            hf.App("ok").action(name=name)(anything.function)


async def test_an_unknown_action_is_refused(client, engine):
    for action in ("", "nope", "bad.anything ", "bad.\x00", "x" * 10_000):
        with pytest.raises(NotFound) as missing:
            await client.enqueue(action, value=1)
        assert missing.value.code == "action_not_found", action[:20]
    assert (await stored(engine))[0] == 0


@pytest.mark.parametrize(
    ("variables", "code"),
    [
        ({"HOLDFAST_LEASE_SECONDS": "1", "HOLDFAST_HEARTBEAT_SECONDS": "1"}, "heartbeat_too_slow"),
        ({"HOLDFAST_LEASE_SECONDS": "nan"}, "invalid_settings"),
        ({"HOLDFAST_LEASE_SECONDS": "inf"}, "invalid_settings"),
        ({"HOLDFAST_LEASE_SECONDS": "-5"}, "invalid_settings"),
        ({"HOLDFAST_SLOTS": "1e9"}, "invalid_settings"),
        ({"HOLDFAST_SLOTS": "0"}, "invalid_settings"),
        ({"HOLDFAST_LEAS_SECONDS": "5"}, "unknown_setting"),
        ({"HOLDFAST_RETENTION_DAYS": "forever"}, "invalid_settings"),
    ],
)
def test_an_absurd_setting_is_refused_by_name(variables, code):
    with pytest.raises(InvalidSettings) as refused:
        Settings.load(variables)
    assert refused.value.code == code
    assert any(name.split("_", 1)[1].lower()[:4] in str(refused.value).lower() for name in variables)


def test_a_lease_shorter_than_its_heartbeat_is_refused_when_the_settings_are_made():
    with pytest.raises(InvalidSettings) as refused:
        Settings(worker=WorkerSettings(lease_seconds=1.0, heartbeat_seconds=2.0))
    assert refused.value.code == "heartbeat_too_slow"


URLS = [
    "",
    "nonsense",
    "mysql://user:secret@127.0.0.1/x",
    "http://127.0.0.1:1/x",
    "postgresql://user:secret@127.0.0.1:1/x",
    "postgresql://user:secret@127.0.0.1:99999/x",
    "postgresql://user:secret@127.0.0.1:port/x",
    "postgresql://user:secret@no.such.host.invalid/x",
    "postgresql:///x?host=/no/such/folder",
]


@pytest.mark.parametrize("url", URLS)
async def test_a_database_that_is_not_there_is_said_to_be_so_without_its_password(url):
    with pytest.raises(HoldfastError) as away:
        await Database(url).open()
    assert away.value.code in ("database_unreachable", "invalid_url")
    assert "secret" not in str(away.value)


async def test_a_database_that_does_not_exist_is_named(engine):
    url = engine.database.url
    missing = url.replace(url.partition("?")[0].rpartition("/")[2], "no_such_database", 1)
    with pytest.raises(Unavailable, match="no_such_database"):
        await Database(missing).open()


@pytest.mark.parametrize(("major", "is_fine"), [(9, False), (14, False), (15, True), (18, True), (99, True)])
def test_an_old_server_is_refused(major, is_fine):
    version = type("Version", (), {"major": major})()
    if is_fine:
        _check_version(version)
        return
    with pytest.raises(Unavailable) as refused:
        _check_version(version)
    assert refused.value.code == "database_too_old"


async def test_a_closed_client_says_so():
    with pytest.raises(Invalid) as refused:
        await Client(Settings(), app.actions).enqueue(anything, value=1)
    assert refused.value.code == "client_closed"


async def test_one_bad_item_refuses_a_bulk_of_thousands(client, engine):
    inputs = [{"value": n} for n in range(3_000)] + [{"value": math.nan}]
    with pytest.raises(Invalid):
        await client.enqueue_many(anything, inputs)
    assert (await stored(engine))[:2] == [0, 0]
    assert len(await client.enqueue_many(anything, inputs[:-1])) == 3_000
    assert await client.enqueue_many(anything, []) == []


async def test_a_source_of_inputs_that_breaks_refuses_the_whole_bulk(client, engine):
    def inputs():
        for number in range(2_500):
            yield {"value": number}
        raise KeyError("the source broke")

    with pytest.raises(KeyError):
        await client.enqueue_many(anything, inputs())
    assert (await stored(engine))[:2] == [0, 0]
    await asyncio.gather(*(client.enqueue(anything, value=n) for n in range(20)))


async def test_what_sql_hands_in_is_checked_there(client, engine):
    bad = [
        ("select holdfast.enqueue('a b')", "22023"),
        ("select holdfast.enqueue('bad.anyting')", "22023"),
        ("select holdfast.enqueue('bad.anything', '[]')", "22023"),
        ("select holdfast.enqueue('bad.anything', priority => 10)", "22023"),
        ("select holdfast.enqueue('bad.anything', key => ' ')", "22023"),
        ("select holdfast.enqueue('bad.anything', tenant => 'nobody')", "22023"),
        ("select holdfast.enqueue('bad.anything', jsonb_build_object('x', repeat('x', 2000000)))", "22023"),
    ]
    import asyncpg

    for query, code in bad:
        with pytest.raises(asyncpg.PostgresError) as refused:
            await engine.database.fetch(query)
        assert refused.value.sqlstate == code
    assert (await stored(engine))[:2] == [0, 0]


async def test_numbers_no_float_can_hold_fail_that_task_alone(client, engine):
    await declare(engine, "bad.typed", "bad.anything")
    await engine.database.fetch("""select holdfast.enqueue('bad.typed', '{"number": 1.5e400, "name": 1e400}')""")
    await engine.database.fetch("""select holdfast.enqueue('bad.anything', '{"value": 1e131071}')""")
    right = await client.enqueue(typed, number=7)
    summary = await run_until_idle(app, engine)
    assert (summary.failed, summary.completed) == (2, 1)
    assert await right.result(timeout=5) == 7


def test_settings_with_a_bad_file_are_refused(tmp_path):
    path = tmp_path / "holdfast.toml"
    for content in (b"lease = [", b"\xff\xfe", b"[worker]\nleas_seconds = 5"):
        path.write_bytes(content)
        with pytest.raises(InvalidSettings):
            Settings.load({}, toml_path=path)
    assert json.dumps(replace(Settings(), port=1).port) == "1"


@app.flow
def a_flow(n: int):
    typed(number=n)


WRONG_KINDS = [
    ("enqueue", a_flow, "not_an_action", "bad.a_flow is a flow"),
    ("enqueue", print, "not_an_action", "print is a plain function"),
    ("enqueue", 7, "not_an_action", "7 is of the type int"),
    ("enqueue_many", a_flow.definition, "not_an_action", "bad.a_flow is a flow"),
    ("start", typed, "not_a_flow", "bad.typed is an action"),
    ("start", typed.options(priority=1), "not_a_flow", "bad.typed is an action"),
    ("start", print, "not_a_flow", "print is a plain function"),
]


async def test_what_is_no_action_or_flow_is_refused_by_name(client, engine, subtests):
    for verb, given, code, said in WRONG_KINDS:
        with subtests.test(verb=verb, given=given, code=code, said=said):
            arguments = ([{}],) if verb == "enqueue_many" else ()
            with pytest.raises(Invalid) as refused:
                await getattr(client, verb)(given, *arguments)
            assert (refused.value.code, said in refused.value.detail, bool(refused.value.advice)) == (code, True, True)


async def test_input_by_position_is_refused(client):
    with pytest.raises(Invalid, match="passed by name"):
        await client.enqueue(typed, 7)
