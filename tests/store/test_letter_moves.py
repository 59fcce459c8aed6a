"""Every statement that moves a letter moves it along the table in `core.dead`, read from its own text."""

from __future__ import annotations

import re

import pytest

from holdfast.core.dead_letters.dead_letter import TRANSITIONS, DeadLetterState
from holdfast.store.statements import statements

_TO = re.compile(r"update holdfast\.dead_letter d\s+set state = '(\w+)'")
_FROM = re.compile(r"\bd\.state(?: \|\| '')? in \(([^)]*)\)|\bd\.state = '(\w+)'(?! then)")
MOVING = [name for name, statement in statements().items() if _TO.search(statement.text)]
TOLD = {
    "update_dead_letters_after_settle": {"open", "retry_requested", "retrying", "ignored"},
    # One that is ignored already may be abandoned: another disposition, the same state.
    "ignore_dead_letters": {"open", "retry_requested", "retrying"},
}
"""Where one statement does two things, what the one that moves starts from."""
THROUGH = {"request_and_dispatch_dead_letters": DeadLetterState.RETRY_REQUESTED}
"""Where one statement makes two moves, what lies between."""


def moves(name: str) -> set[tuple[DeadLetterState, DeadLetterState]]:
    """Where from and where to a statement moves letters."""
    text = statements()[name].text
    [to] = {DeadLetterState(state) for state in _TO.findall(text)}
    through = THROUGH.get(name, to)
    return {(DeadLetterState(state), through) for state in from_states(name, text)} | ({(through, to)} - {(to, to)})


def from_states(name: str, text: str) -> set[str]:
    listed = {state for group, one in _FROM.findall(text) for state in [*re.findall(r"\w+", group), one] if state}
    return TOLD.get(name, listed)


@pytest.mark.parametrize("name", MOVING)
def test_a_statement_moves_letters_along_the_table(name):
    found = moves(name)
    assert found
    assert all(to in TRANSITIONS[state] for state, to in found), (name, found)


def test_every_way_of_the_table_is_taken_by_some_statement():
    taken = set().union(*map(moves, MOVING))
    assert taken == {(state, to) for state, targets in TRANSITIONS.items() for to in targets}
