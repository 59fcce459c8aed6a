"""Codes and their families: a code that names its family is of that family, whatever branch its error is of."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from holdfast.errors import Conflict, HoldfastError, Invalid, LeaseLost, NotFound, TaskFailed
from holdfast.operations.http_errors import error_of

TOLD: list[tuple[HoldfastError, int, str]] = [
    (NotFound("x", code="DAG_VALIDATION_DAG_RUN_NOT_FOUND"), 404, "validation"),
    (NotFound("x", code="task_not_found"), 404, "not_found"),
    (Conflict("x", code="DAG_STATE_TRANSITION_RUN_NOT_RETRYABLE"), 409, "state_transition"),
    (Conflict("x", code="not_claimable"), 409, "conflict"),
    (Invalid("x", code="DAG_VALIDATION_NODES_EMPTY"), 422, "validation"),
    (LeaseLost("x"), 409, "lease"),
    (TaskFailed("x"), 409, "task_execution"),
]


@pytest.mark.parametrize(("error", "status", "category"), TOLD, ids=lambda one: getattr(one, "code", None))
def test_the_family_is_that_of_the_code_and_the_branch_survives_the_way(error, status, category):
    assert error.category == category
    body = {"code": error.code, "category": error.category, "detail": error.detail}
    heard = error_of(status, msgspec.json.encode(body))
    assert (type(heard), heard.category) == (type(error), category)
    assert pickle.loads(pickle.dumps(error)).category == category
