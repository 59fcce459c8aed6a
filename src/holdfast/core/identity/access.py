"""Access control: what a route demands, the roles of people and programs, and the table between them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from holdfast.errors import Conflict, Forbidden, Invalid


class Access(StrEnum):
    """What a route demands of its caller."""

    PUBLIC = "public"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    WORKER = "worker"
    ATTEMPT = "attempt"
    """A worker, or the holder of a capability for the attempt in question."""


class Role(StrEnum):
    """The role of an authenticated caller."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    WORKER = "worker"


ROLES: Mapping[Role, frozenset[Access]] = MappingProxyType(
    {
        Role.VIEWER: frozenset({Access.VIEWER}),
        Role.OPERATOR: frozenset({Access.VIEWER, Access.OPERATOR}),
        Role.ADMIN: frozenset({Access.VIEWER, Access.OPERATOR, Access.ADMIN}),
        Role.WORKER: frozenset({Access.WORKER, Access.ATTEMPT}),
    }
)
"""People read and operate; workers run tasks. No role does both, so a stolen worker token cannot read the dashboard."""

EVERYTHING = frozenset(Access)

UNPRIVILEGED = frozenset({Access.PUBLIC, Access.VIEWER})
"""Access levels whose refusals are not recorded in the audit log; refusals at other routes are."""


def valid_role(role: object) -> Role:
    """Accept a role by its name."""
    try:
        return Role(str(role))
    except ValueError:
        raise Invalid(
            f"There is no role {str(role)[:80]!r}.",
            code="invalid_role",
            advice=f"The roles are {', '.join(Role)}.",
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRight:
    """What a caller of the worker API may do: serve these queues (None: all), as workers of its own token."""

    queues: Collection[str] | None = None
    token_id: str = ""

    def require(self, worker_id: int, *, queues: Collection[str] | None, token_id: str) -> None:
        """Refuse to act for a worker that registered with another token, or for other queues."""
        if token_id != self.token_id:
            raise unknown_worker(worker_id)
        require_queues(self.queues, queues)


ANY_WORKER = WorkerRight()
"""A caller without a token: the test kit, or a developer on this machine."""


def unknown_worker(worker_id: int) -> Conflict:
    """Build the error for a worker that is not registered, has left, or belongs to another token: the same for all
    three.
    """
    return Conflict(
        f"Worker {worker_id} is not registered, or has left.",
        code="worker_not_registered",
        advice="Register again (POST /internal/workers) and use the returned id.",
        reason="unknown_worker",
    )


def require_queues(allowed: Collection[str] | None, queues: Collection[str] | None) -> None:
    """Refuse a worker that would serve a queue beyond the allowed ones. `queues` None means every queue."""
    if allowed is None:
        return
    beyond = ["every queue"] if queues is None else sorted(set(queues) - set(allowed))
    if beyond:
        raise Forbidden(
            f"This worker may not serve {', '.join(beyond)[:200]}.",
            code="queue_not_allowed",
            advice=f"Its token is for {', '.join(sorted(allowed))[:200]}.",
        )
