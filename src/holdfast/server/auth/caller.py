"""The caller of a request as the authenticator identified it, and what it may do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.identity.access import Access, WorkerRight, require_queues
from holdfast.errors import Forbidden

__all__ = ["ANONYMOUS", "Access", "Caller", "authorize"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """An authenticated caller: the name in the audit log, the tenant, and the permissions."""

    actor: str
    tenant_id: int
    may: frozenset[Access]
    queues: frozenset[str] | None = None
    """The only queues this worker may serve; None for all."""
    token_id: str = ""
    """The API token of the caller or, for the caller of one attempt, the token it was claimed with."""
    attempt: tuple[int, int] | None = None
    """The only (task, attempt) this caller may act for; None for any whose lease it can prove."""

    def require_attempt(self, task_id: int, attempt: int) -> None:
        """Raise `Forbidden` if the caller may act only for another attempt."""
        if self.attempt is not None and self.attempt != (task_id, attempt):
            raise Forbidden(
                f"This capability token does not belong to attempt {attempt} of task {task_id}.",
                code="wrong_attempt",
                advice="Use the token of this attempt, or a worker's token.",
            )

    @property
    def worker_right(self) -> WorkerRight:
        """What this caller may do under the id of a worker."""
        return WorkerRight(queues=self.queues, token_id=self.token_id)

    def served(self, queues: Sequence[str] | None) -> Sequence[str] | None:
        """Return the queues a worker serves: those it names, else all that it may serve."""
        if self.queues is None:
            return queues
        if queues is None:
            return sorted(self.queues)
        require_queues(self.queues, queues)
        return queues


ANONYMOUS = Caller(actor="", tenant_id=0, may=frozenset({Access.PUBLIC}))


def authorize(caller: Caller, access: Access) -> Caller:
    """Return the caller if it has this access; raise `Forbidden` if not."""
    if access not in caller.may:
        raise Forbidden(f"{caller.actor} may not do this.", needs=access.value)
    return caller
