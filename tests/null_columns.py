"""No statement returns null in a column that its signature declares as never null: checked in every test.

The typed functions of the store promise their callers what the signatures in the SQL files say.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.store.session import Session
from holdfast.store.statements import Statement, statements

ROWS_MAX = 20
"""How many rows of a result are checked."""
violations: list[str] = []
"""Which columns were null, since the last test ended."""


def watch_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the results of all sessions in this process."""
    fetch = Session.fetch
    by_text = {statement.text: statement for statement in statements().values()}

    async def fetch_checked(self: Session, text: str, *arguments: Any) -> list[Any]:
        rows = await fetch(self, text, *arguments)
        statement = by_text.get(text)
        if statement is not None and statement.result != "nothing":
            for row in rows[:ROWS_MAX]:
                violations.extend(_violations(statement, row))
        return rows

    monkeypatch.setattr(Session, "fetch", fetch_checked)


def _violations(statement: Statement, row: Any) -> list[str]:
    if statement.file.startswith("invariants/"):
        return []
    return [
        f"{statement.name} returned null in {name}: declare it as nullable in {statement.file}"
        for name, value in row.items()
        if value is None and not _may_be_null(statement, row, name)
    ]


def _may_be_null(statement: Statement, row: Any, name: str) -> bool:
    if name in statement.null_with:
        return row[statement.null_with[name]] is None
    return name in statement.nullable or statement.result == "value?"
