"""Which invariants are asked after a test: none may be left out that could find something."""

from __future__ import annotations

import pytest
from tests.conftest import needed_by

STATEMENTS = {
    "select from holdfast.live t left join holdfast.body b on true": {"live"},
    "select from holdfast.live t where exists (select from holdfast.ended e)": {"live"},
    "select from holdfast.live union all select from holdfast.ended": {"live", "ended"},
    "select from holdfast.live t right join holdfast.body b on true": {"live", "body"},
    "select from holdfast.live t full join holdfast.body b on true": {"live", "body"},
    "with x as (select from holdfast.body) select from holdfast.live join x on true": {"live", "body"},
    "select from holdfast.live having count(*) = 0": set(),
    "select from holdfast.queue q join holdfast.live t on true": {"live"},
    "select from generate_series(1, 2) n left join holdfast.live t on true": {"live"},
    "select from (select from holdfast.attempt union all select from holdfast.failure) a": {"attempt", "failure"},
    "select where holdfast.instant() is null": set(),
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_rows_come_from_the_tables_that_a_statement_begins_with(statement):
    assert needed_by(statement) == STATEMENTS[statement]
