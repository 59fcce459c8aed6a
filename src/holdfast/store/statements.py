"""Every SQL statement by name, read once from the files of `store/sql/`.

A statement starts with its signature, the columns that may be null, and a description:

    -- name: pass_trials(breaker_id, since, passed) -> value?
    -- nullable: since
    -- Count trials that passed, if the breaker is still in the same half-open period.

The statement refers to its parameters as `@breaker_id`. A parameter that may be null is marked `?` in the signature,
one whose elements may be null `[?]`. `-- null with run_id: node_no` names columns that are null together with another.
The result is one of:

- `rows`, or `row?` for at most one row, or `row` for exactly one
- `values` for the only column of all rows, or `value?` or `value` for that of one row
- `tuples` for rows without names, on the hot path
- `nothing`

`tools/generate_store.py` writes the typed function of each statement into the module beside its file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType

_HEADER = re.compile(
    r"""
    ^--\ name:\ (?P<name>\w+)
    \((?P<parameters>[^)]*)\)\s(?:--\s+)?->\s(?:--\s+)?(?P<result>\w+\??)(?P<prepared>\s(?:--\s+)?prepared)?\n
    (?:--\ nullable:\ (?P<nullable>.*(?:\n--\ \ \ .*)*)\n)?
    (?P<groups>(?:--\ null\ with\ \w+:\ .*(?:\n--\ \ \ .*)*\n)*)
    """,
    re.MULTILINE | re.VERBOSE,
)
_GROUP = re.compile(r"^-- null with (\w+): (.*(?:\n--   .*)*)", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![\w@])@([a-z]\w*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementParameter:
    """A parameter of a statement, and whether it, or elements of its array, may be null."""

    name: str
    is_nullable: bool
    has_nulls: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement: its file, signature and description, and its text with positional parameters."""

    name: str
    file: str
    description: str
    parameters: tuple[StatementParameter, ...]
    result: str
    nullable: frozenset[str]
    """The columns of the result that may be null on their own."""
    null_with: Mapping[str, str]
    """Columns that are null if, and only if, another one is: callers check that one."""
    is_prepared: bool
    """Whether a database keeps the statement prepared, even behind a pooler."""
    text: str


@cache
def statements() -> Mapping[str, Statement]:
    """Return all statements. The name stays in the text, so that it shows in the server's log."""
    found: dict[str, Statement] = {}
    for place, file in _files(resources.files("holdfast.store.sql")):
        text = file.read_text("utf-8")
        headers = list(_HEADER.finditer(text))
        assert len(headers) == text.count("-- name: "), f"{place} has a statement without a signature"
        ends = [header.start() for header in headers[1:]] + [len(text)]
        for header, end in zip(headers, ends, strict=True):
            statement = _statement(header, place, text[header.end() : end])
            assert statement.name not in found, f"statement {statement.name} is defined twice"
            found[statement.name] = statement
    return MappingProxyType(found)


def sql(name: str) -> str:
    """Return the text of one statement."""
    return statements()[name].text


def statements_in(folder: str) -> list[Statement]:
    """Return the statements of one folder, file by file."""
    return [statement for statement in statements().values() if statement.file.startswith(f"{folder}/")]


def _files(folder: Traversable, place: str = "") -> Iterator[tuple[str, Traversable]]:
    """Yield every SQL file below a folder with its relative path, sorted by name."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _files(entry, f"{place}{entry.name}/")
        elif entry.name.endswith(".sql"):
            yield f"{place}{entry.name}", entry


def _statement(header: re.Match[str], file: str, text: str) -> Statement:
    parameters = [
        StatementParameter(name=word.rstrip("[?]"), is_nullable=word.endswith("?"), has_nulls="[?]" in word)
        for word in _words(header["parameters"])
    ]
    numbers = {parameter.name: number for number, parameter in enumerate(parameters, 1)}
    lines = text.strip().splitlines()
    described = next((number for number, line in enumerate(lines) if not line.startswith("--")), len(lines))
    body = "\n".join(line for line in lines[described:] if not line.startswith("--"))
    return Statement(
        name=header["name"],
        file=file,
        description=" ".join(line.removeprefix("--").strip() for line in lines[:described]),
        parameters=tuple(parameters),
        result=header["result"],
        nullable=frozenset(_words(header["nullable"] or "")),
        null_with={column: key for key, columns in _GROUP.findall(header["groups"]) for column in _words(columns)},
        is_prepared=header["prepared"] is not None,
        text=f"-- holdfast: {header['name']}\n"
        + _PARAMETER.sub(lambda match: f"${numbers[match[1]]}", body).strip().removesuffix(";"),
    )


def _words(text: str) -> list[str]:
    """Return the words of a list that may go on in further comment lines."""
    return [word for word in re.split(r"[,\s]+", text.replace("\n--", " ")) if word]
