"""Datasets as values: the definition of a generation, and the commits that an attempt requests with its completion.

A definition is checked when it is declared. Its names become names of tables and columns, so the accepted characters
are narrow: an accepted name is safe to quote and leaves room for the suffixes that the engine adds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from holdfast.core.tasks.failure import Failure
from holdfast.errors import Invalid

PLACE_DEFAULT = "holdfast_data"
COLUMNS_MAX = 200
VERSION_MAX = 2**31 - 1
PARTITION_CHARACTERS_MAX = 256

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_MADE = re.compile(r".*_v[0-9]+(_staged)?")
_COLUMN = re.compile(r"[a-z][a-z0-9_]{0,62}")
_PLACE = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class ColumnType(StrEnum):
    """The type of a column, by its PostgreSQL name (`double` is double precision)."""

    TEXT = "text"
    BIGINT = "bigint"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    TIMESTAMPTZ = "timestamptz"
    DATE = "date"
    NUMERIC = "numeric"
    JSONB = "jsonb"
    BYTEA = "bytea"


class Mode(StrEnum):
    """What a commit does: append rows, replace a partition, or make a generation current."""

    APPEND = "append"
    REPLACE = "replace"
    CUT_OVER = "cut_over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """One version of a dataset: its columns by name, and the columns that form its unique key."""

    name: str
    version: int
    columns: Mapping[str, ColumnType]
    key: tuple[str, ...] = ()
    schema: str = PLACE_DEFAULT

    @property
    def view(self) -> str:
        """The view that readers select from; it always shows the current version."""
        return f"{self.schema}.{self.name}"

    @property
    def table(self) -> str:
        """The table of this version, for inspection before the cut-over."""
        return f"{self.schema}.{self.name}_v{self.version}"

    @property
    def stage(self) -> str:
        """The name, without its schema, of the table where rows wait for the completion of their attempt."""
        return f"{self.name}_v{self.version}_staged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One change to a generation that is committed together with the attempt's completion."""

    generation_id: int
    mode: Mode
    part: int = 0
    rows: int = 0
    is_forced: bool = False


def defined(
    name: object, *, version: object, columns: object, key: object = (), schema: object = PLACE_DEFAULT
) -> Dataset:
    """Check a dataset definition; raise `Invalid` naming the fault."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or _MADE.fullmatch(name):
        raise _refusal(
            f"{name!r} cannot name a dataset.",
            "Use 1 to 40 lower-case letters, digits or _, beginning with a letter and not ending in _v and a number.",
        )
    if not isinstance(version, int) or isinstance(version, bool) or not 0 < version <= VERSION_MAX:
        raise _refusal(f"{version!r} cannot be the version of {name}.", "Use a whole number from 1.")
    if not isinstance(schema, str) or not _PLACE.fullmatch(schema) or schema.startswith("pg_") or schema == "holdfast":
        raise _refusal(f"{schema!r} cannot hold {name}.", "Name a schema of your own, in lower case.")
    checked = _columns(name, columns)
    names = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, list | tuple) else (key,)
    for column in names:
        if column not in checked:
            raise _refusal(
                f"The key of {name} names {column!r}, which is not a column of it.", "Name some of its columns."
            )
        if checked[column] is ColumnType.JSONB:
            raise _refusal(
                f"The key of {name} names {column}, which is JSON.", "Use a column whose type can be compared."
            )
    if len(set(names)) < len(names):
        raise _refusal(f"The key of {name} names a column twice.", "Name each once.")
    return Dataset(name=name, version=version, columns=checked, key=names, schema=schema)


def _columns(name: str, columns: object) -> dict[str, ColumnType]:
    if not isinstance(columns, Mapping) or not 0 < len(columns) <= COLUMNS_MAX:
        raise _refusal(f"{name} needs 1 to {COLUMNS_MAX} columns.", 'Pass columns={"order_id": "bigint", …}.')
    checked = {}
    for column, kind in columns.items():
        if not isinstance(column, str) or not _COLUMN.fullmatch(column):
            raise _refusal(
                f"{column!r} cannot be a column of {name}.",
                "Use 1 to 63 lower-case letters, digits or _, beginning with a letter.",
            )
        try:
            checked[column] = ColumnType(kind)
        except ValueError:
            raise _refusal(
                f"The column {column} of {name} has the unknown type {kind!r}.",
                f"Choose one of {', '.join(ColumnType)}.",
            ) from None
    return checked


def valid_partition(partition: object) -> str:
    """Accept the name of a partition; rows without a partition go to the empty one."""
    is_text = isinstance(partition, str) and len(partition) <= PARTITION_CHARACTERS_MAX
    if not is_text or not (partition == "" or str(partition).isprintable()):
        limit = f"at most {PARTITION_CHARACTERS_MAX} printable characters"
        raise Invalid(
            f"{str(partition)[:80]!r} cannot name a partition.",
            code="dataset_partition_invalid",
            advice=f"Use {limit}.",
        )
    return str(partition)


def _refusal(what: str, advice: str) -> Invalid:
    return Invalid(what, code="dataset_invalid", advice=advice)


def superseded(name: str, version: int) -> Failure:
    return Failure(
        code="dataset_superseded",
        message=f"Version {version} of {name} is no longer current; a worker that declares the newer version "
        "can run this task.",
    )


def rolled_back(name: str, version: int) -> Failure:
    return Failure(
        code="dataset_rolled_back",
        message=f"Version {version} of {name} was rolled back; declare a new version.",
    )


def key_taken(name: str, detail: str) -> Failure:
    return Failure(
        code="dataset_key_conflict",
        message=f"A row of {name} is duplicated, or belongs to another partition: {detail}",
    )


def stage_missing(name: str, expected: int) -> Failure:
    return Failure(code="dataset_stage_missing", message=f"Some of the {expected} rows staged for {name} are missing.")


def builds_unfinished(name: str, version: int, unfinished: int, failed: int) -> Failure:
    return Failure(
        code="dataset_build_unfinished",
        message=f"Version {version} of {name} cannot be cut over: {unfinished_words(unfinished, failed)}.",
    )


def unfinished_words(unfinished: int, failed: int) -> str:
    parts = [f"{unfinished} of its builds have not ended"] if unfinished else []
    return " and ".join([*parts, *([f"{failed} failed"] if failed else [])])


def busy(name: str) -> Failure:
    return Failure(code="dataset_busy", message=f"Readers held locks on {name} for longer than a cut-over may wait.")


def view_in_use(name: str, detail: str) -> Failure:
    return Failure(
        code="dataset_view_in_use",
        message=f"The columns of {name} changed, but another object depends on its view: {detail}",
    )
