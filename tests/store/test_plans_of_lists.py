"""What a list asks of each of its rows is a part of the statement: a function would be started anew for every row."""

from __future__ import annotations

import pytest
from tests.store.test_plans import explain


@pytest.mark.parametrize(
    ("statement", "function"), [("list_runs", "state_of_run"), ("list_dead_letters", "compensable_effects")]
)
async def test_functions_of_lists_are_read_in_line(engine, statement, function):
    async with engine.database.session() as session:
        nodes = list((await explain(session, statement)).walk())
    assert not [node for node in nodes if node.get("Function Name") == function]
    # These are asked once for all rows, not for each.
    scans = {node["Function Name"] for node in nodes if node["Node Type"] == "Function Scan"}
    assert scans <= {"newest_ids", "unnest"}
