"""Definitions of datasets and their rows: what is accepted, and what is named when it is not."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.datasets.dataset import ColumnType, defined, valid_partition
from holdfast.core.datasets.rows import BATCH_ROWS_MAX, RowEncoder
from holdfast.errors import Invalid

ALL = {f"c_{kind}": kind for kind in ColumnType}
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def test_a_definition_keeps_the_order_of_its_columns_and_names_its_tables():
    made = defined("orders", version=3, columns={"b": "text", "a": "bigint"}, key=["a", "b"], schema="sales")
    assert (list(made.columns), made.key) == (["b", "a"], ("a", "b"))
    assert (made.view, made.table, made.stage) == ("sales.orders", "sales.orders_v3", "orders_v3_staged")


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "Orders"},
        {"name": 'o"; drop table x; --'},
        {"name": "orders_v2"},
        {"name": "orders_v2_staged"},
        {"name": "o" * 41},
        {"name": 7},
        {"version": 0},
        {"version": True},
        {"version": "2"},
        {"version": 2**31},
        {"columns": {}},
        {"columns": ["a"]},
        {"columns": {"_hidden": "text"}},
        {"columns": {'a"b': "text"}},
        {"columns": {"a": "int4"}},
        {"columns": {"a": "text); drop table x"}},
        {"columns": {f"c{n}": "text" for n in range(201)}},
        {"key": "b"},
        {"key": ["a", "a"]},
        {"key": 7},
        {"columns": {"a": "jsonb"}, "key": "a"},
        {"schema": "pg_catalog"},
        {"schema": "holdfast"},
        {"schema": 'x"y'},
    ],
)
def test_what_cannot_be_a_dataset_is_refused(wrong):
    right = {"name": "orders", "version": 1, "columns": {"a": "text"}} | wrong
    with pytest.raises(Invalid) as refused:
        defined(right.pop("name"), **right)
    assert refused.value.code == "dataset_invalid" and refused.value.advice


@pytest.mark.parametrize("partition", ["a\nb", "x" * 257, None, 7, "\x00"])
def test_what_cannot_name_a_partition_is_refused(partition):
    with pytest.raises(Invalid):
        valid_partition(partition)


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        ("text", "é", "é"),
        ("bigint", -(2**63), -(2**63)),
        ("double", 3, 3.0),
        ("double", float("inf"), float("inf")),
        ("boolean", False, False),
        ("timestamptz", NOON, NOON),
        ("timestamptz", "2026-11-15T12:00:00+00:00", NOON),
        ("date", date(2026, 11, 15), date(2026, 11, 15)),
        ("date", "2026-11-15", date(2026, 11, 15)),
        ("numeric", "12.30", Decimal("12.30")),
        ("numeric", 12, Decimal(12)),
        ("jsonb", {"a": [1, None]}, '{"a":[1,null]}'),
        ("jsonb", "a\\u0000b", json.dumps("a\\u0000b")),
        ("bytea", bytearray(b"\x00"), b"\x00"),
        ("bigint", None, None),
    ],
)
def test_values_that_fit_their_column(kind, value, stored):
    encoder = RowEncoder(defined("d", version=1, columns={"c": kind}))
    assert list(encoder.batches([{"c": value}])) == [[(stored,)]]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("text", 7),
        ("text", "a\x00"),
        ("text", "\ud800"),
        ("bigint", True),
        ("bigint", 1.0),
        ("bigint", "1"),
        ("bigint", 2**63),
        ("double", "1"),
        ("double", True),
        ("double", 10**400),
        ("boolean", 1),
        ("timestamptz", datetime(2026, 11, 15)),
        ("timestamptz", "2026-11-15T12:00:00"),
        ("timestamptz", date(2026, 11, 15)),
        ("date", NOON),
        ("date", "yesterday"),
        ("numeric", 1.5),
        ("numeric", "1e2000"),
        ("numeric", "much"),
        ("numeric", Decimal("sNaN")),
        ("jsonb", {1, 2}),
        ("jsonb", float("inf")),
        ("jsonb", {"a": ["\x00"]}),
        ("jsonb", "\ud800"),
        ("bytea", "text"),
    ],
)
def test_values_that_do_not(kind, value):
    encoder = RowEncoder(defined("d", version=1, columns={"n": "bigint", "c": kind}))
    with pytest.raises(Invalid) as refused:
        list(encoder.batches([{"n": 1}, {"n": 2, "c": value}]))
    assert refused.value.code == "dataset_row_invalid"
    assert refused.value.fields == {"row": 2, "column": "c"}


@pytest.mark.parametrize("count", [0, 1, BATCH_ROWS_MAX - 1, BATCH_ROWS_MAX, BATCH_ROWS_MAX + 1, 3 * BATCH_ROWS_MAX])
def test_batches_hold_every_row_once_and_in_order(count):
    encoder = RowEncoder(defined("d", version=1, columns={"c": "bigint"}))
    batches = list(encoder.batches((n,) for n in range(count)))
    assert [value for batch in batches for (value,) in batch] == list(range(count))
    assert max(map(len, batches), default=0) <= BATCH_ROWS_MAX


@given(st.text() | st.binary() | st.integers() | st.floats() | st.none() | st.lists(st.text()) | st.datetimes())
def test_any_value_is_accepted_or_refused_by_its_row(value):
    for kind in ColumnType:
        encoder = RowEncoder(defined("d", version=1, columns={"c": kind}))
        try:
            list(encoder.batches([{"c": value}]))
        except Invalid as refused:
            assert refused.fields["row"] == 1


def test_large_values_make_small_batches():
    encoder = RowEncoder(defined("d", version=1, columns={"c": "text"}))
    batches = list(encoder.batches(("x" * 1_000_000,) for _ in range(20)))
    assert len(batches) >= 4
