"""The table of roles, cell by cell."""

from __future__ import annotations

import pytest

from holdfast.core.identity.access import EVERYTHING, ROLES, Access, Role, require_queues, valid_role
from holdfast.errors import Forbidden, Invalid

MATRIX = {
    #                viewer operator admin  worker attempt
    Role.VIEWER: (True, False, False, False, False),
    Role.OPERATOR: (True, True, False, False, False),
    Role.ADMIN: (True, True, True, False, False),
    Role.WORKER: (False, False, False, True, True),
}
COLUMNS = (Access.VIEWER, Access.OPERATOR, Access.ADMIN, Access.WORKER, Access.ATTEMPT)


@pytest.mark.parametrize("role", Role)
def test_a_role_may_what_the_table_says(role):
    assert tuple(access in ROLES[role] for access in COLUMNS) == MATRIX[role]


def test_the_table_is_whole():
    assert set(MATRIX) == set(ROLES) == set(Role)
    assert set(COLUMNS) | {Access.PUBLIC} == set(Access) == set(EVERYTHING)


def test_nobody_both_steers_and_works():
    assert not any({Access.VIEWER, Access.WORKER} <= may for may in ROLES.values())


@pytest.mark.parametrize("role", ["", "root", "Admin", "public", None])
def test_another_role_is_refused(role):
    with pytest.raises(Invalid, match="There is no role"):
        valid_role(role)


@pytest.mark.parametrize(
    ("allowed", "queues", "may"),
    [
        (None, None, True),
        (None, ["mail"], True),
        ({"mail"}, ["mail"], True),
        ({"mail"}, [], True),
        ({"mail"}, None, False),
        ({"mail"}, ["mail", "money"], False),
        (set(), ["mail"], False),
    ],
)
def test_a_worker_serves_what_it_may(allowed, queues, may):
    if may:
        require_queues(allowed, queues)
        return
    with pytest.raises(Forbidden) as refused:
        require_queues(allowed, queues)
    assert refused.value.code == "queue_not_allowed"
