"""No guard inside a function of the schema is there for nothing either.

The function is replaced in the database of the check, as the server has it: with the rights it runs with.
"""

from __future__ import annotations

import pytest
from tests.guards.functions import FUNCTIONS
from tests.guards.inventory import functions, unlisted
from tests.guards.survival import survives


@pytest.mark.breaks_invariants
@pytest.mark.representative(one_in=6)
@pytest.mark.parametrize("mutant", FUNCTIONS, ids=lambda mutant: mutant.name)
async def test_a_check_fails_without_the_guard(mutant, stage):
    made = await stage.value("select pg_get_functiondef(('holdfast.' || $1)::regproc)", mutant.statement)
    assert made.count(mutant.guard) == 1, f"{mutant.name} is there {made.count(mutant.guard)} times"
    async with stage.engine.database.session() as session:
        await session.execute(made.replace(mutant.guard, mutant.replacement))
    assert not await survives(mutant.killed_by, stage), f"{mutant.name} survived {mutant.killed_by}"


@pytest.mark.parametrize("name", functions())
def test_every_guard_is_on_the_list(name):
    left, text = unlisted(functions()[name], [mutant.guard for mutant in FUNCTIONS if mutant.statement == name])
    assert not left, f"{name} has guards without a mutant: {left}\n{text}"


def test_functions_with_guards_are_found():
    """As long as they are written as they are: a body between dollars, in a migration."""
    assert {mutant.statement for mutant in FUNCTIONS} <= set(functions())
