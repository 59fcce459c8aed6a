"""Who asks: the caller of a request as the door made them out, and whether they may."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.identity.access import Access, WorkerRight, require_queues
from holdfast.errors import Forbidden

__all__ = ["NOBODY", "Access", "Caller", "authorize"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Somebody known: their name in the audit log, their tenant, and what they may do."""

    actor: str
    tenant_id: int
    may: frozenset[Access]
    queues: frozenset[str] | None = None
    """The only queues this worker may serve; without it, all."""
    token_id: str = ""
    """The API token they came with, or, for whoever runs an attempt, the one it was claimed with."""
    attempt: tuple[int, int] | None = None
    """The only (task, attempt) this caller may speak for; without it, any whose lease it can show."""

    def require_attempt(self, task_id: int, attempt: int) -> None:
        """Refuse to speak for another attempt than one's own."""
        if self.attempt is not None and self.attempt != (task_id, attempt):
            raise Forbidden(
                f"This capability token is not of attempt {attempt} of task {task_id}.",
                code="wrong_attempt",
                advice="Use the token that came with the attempt, or a worker's token.",
            )

    @property
    def worker_right(self) -> WorkerRight:
        """What this caller may do under the id of a worker."""
        return WorkerRight(queues=self.queues, token_id=self.token_id)

    def served(self, queues: Sequence[str] | None) -> Sequence[str] | None:
        """The queues a worker means: those it names, else all that it may serve."""
        if self.queues is None:
            return queues
        if queues is None:
            return sorted(self.queues)
        require_queues(self.queues, queues)
        return queues


NOBODY = Caller(actor="", tenant_id=0, may=frozenset({Access.PUBLIC}))


def authorize(caller: Caller, access: Access) -> Caller:
    """The caller, if they may; `Forbidden` if not."""
    if access not in caller.may:
        raise Forbidden(f"{caller.actor} may not do this.", needs=access.value)
    return caller
