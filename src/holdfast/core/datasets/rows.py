"""Validation of dataset rows: each value is checked against its column, so that an error names the row.

PostgreSQL accepts every row that passes. Values are not converted by guessing: text is not a number, and an instant
needs a time zone. ISO text is accepted for dates and instants, and text for numerics, because JSON and CSV carry them
that way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from holdfast.core.datasets.dataset import ColumnType, Dataset
from holdfast.errors import Invalid

BIGINT_MIN, BIGINT_MAX = -(2**63), 2**63 - 1
BATCH_ROWS_MAX = 5_000
BATCH_BYTES_MAX = 4 * 1024 * 1024
NUMERIC_DIGITS_MAX = 1_000


class RowEncoder:
    """Converts rows given by user code into records in column order. Rows are counted from 1."""

    def __init__(self, dataset: Dataset) -> None:
        self._name = dataset.name
        self._columns = [(name, kind, _CHECKS[kind], name in dataset.key) for name, kind in dataset.columns.items()]
        self._names = dataset.columns.keys()
        self.count = 0
        self.pending: list[tuple[Any, ...]] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self.pending) >= BATCH_ROWS_MAX or self._bytes >= BATCH_BYTES_MAX

    def add(self, row: object) -> None:
        """Add one row, a mapping by column or a sequence in column order; `Invalid` names row and column."""
        self.count += 1
        values = self._values(row)
        record: list[Any] = []
        for value, (name, kind, check, is_key) in zip(values, self._columns, strict=True):
            if value is None:
                if is_key:
                    raise self._refusal(name, "is missing, but belongs to the key")
                record.append(None)
                continue
            try:
                checked = check(value)
            except (ValueError, TypeError, OverflowError, RecursionError) as error:
                reason = f": {error}" if str(error) else ""
                raise self._refusal(name, f"is not {kind}: {_shown(value)}{reason}") from None
            if isinstance(checked, str | bytes):
                self._bytes += len(checked)
            record.append(checked)
        self.pending.append(tuple(record))

    def take(self) -> list[tuple[Any, ...]]:
        """Return the records added since the last call."""
        batch, self.pending, self._bytes = self.pending, [], 0
        return batch

    def batches(self, rows: Iterable[object]) -> Iterator[list[tuple[Any, ...]]]:
        """Yield all `rows` in batches, with at most one batch in memory."""
        for row in rows:
            self.add(row)
            if self.is_full:
                yield self.take()
        if self.pending:
            yield self.take()

    def _values(self, row: object) -> Sequence[Any]:
        if isinstance(row, Mapping):
            if unknown := row.keys() - self._names:
                raise self._refusal(min(map(str, unknown)), "is not a column of it")
            return [row.get(name) for name in self._names]
        if isinstance(row, Sequence) and not isinstance(row, str | bytes | bytearray):
            if len(row) != len(self._columns):
                raise Invalid(
                    f"Row {self.count} of {self._name} has {len(row)} values; there are {len(self._columns)} columns.",
                    code="dataset_row_invalid",
                    row=self.count,
                )
            return row
        raise Invalid(
            f"Row {self.count} of {self._name} is neither a mapping nor a sequence: {_shown(row)}.",
            code="dataset_row_invalid",
            advice="Pass each row as a dict by column.",
            row=self.count,
        )

    def _refusal(self, column: str, what: str) -> Invalid:
        return Invalid(
            f"Row {self.count} of {self._name} cannot be stored: {column} {what}.",
            code="dataset_row_invalid",
            row=self.count,
            column=column,
        )


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - the object's own repr may raise, and must not hide the fault
        text = type(value).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("")
    if "\x00" in value:
        raise ValueError("it has a NUL character")
    value.encode()
    return value


def _bigint(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("")
    if not BIGINT_MIN <= value <= BIGINT_MAX:
        raise ValueError("it has more than 64 bits")
    return value


def _double(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError("")
    return float(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("")
    return value


def _timestamptz(value: Any) -> datetime:
    instant = datetime.fromisoformat(value) if isinstance(value, str) else value
    if not isinstance(instant, datetime):
        raise TypeError("")
    if instant.tzinfo is None or instant.utcoffset() is None:
        raise ValueError("it has no time zone")
    return instant


def _date(value: Any) -> date:
    day = date.fromisoformat(value) if isinstance(value, str) else value
    if not isinstance(day, date) or isinstance(day, datetime):
        raise TypeError("")
    return day


def _numeric(value: Any) -> Decimal:
    if not isinstance(value, int | Decimal | str) or isinstance(value, bool):
        raise TypeError("")
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise ValueError("") from None
    if number.is_snan() or (number.is_finite() and abs(number.adjusted()) > NUMERIC_DIGITS_MAX):
        raise ValueError("it is too large or too small")
    return number


def _jsonb(value: Any) -> str:
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    if "\\u0000" in text and _has_nul(value):
        raise ValueError("it has a NUL character")
    text.encode()
    return text


def _has_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\x00" in value
    if isinstance(value, Mapping):
        return any(_has_nul(key) or _has_nul(item) for key, item in value.items())
    return isinstance(value, list | tuple) and any(map(_has_nul, value))


def _bytea(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("")
    return bytes(value)


_CHECKS: Mapping[ColumnType, Callable[[Any], Any]] = {
    ColumnType.TEXT: _text,
    ColumnType.BIGINT: _bigint,
    ColumnType.DOUBLE: _double,
    ColumnType.BOOLEAN: _boolean,
    ColumnType.TIMESTAMPTZ: _timestamptz,
    ColumnType.DATE: _date,
    ColumnType.NUMERIC: _numeric,
    ColumnType.JSONB: _jsonb,
    ColumnType.BYTEA: _bytea,
}
