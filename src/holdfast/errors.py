"""All errors that Holdfast raises, as one tree organized by what the caller can do about them.

    HoldfastError
    ├── Invalid        fix the request: bad input, bad settings, a broken definition
    ├── NotFound       the named object does not exist (or belongs to another tenant)
    ├── Conflict       another request won: stale lease, reused key, wrong state
    ├── Unauthorized   authenticate first
    ├── Forbidden      the caller may not do this
    ├── TooMany        slow down: more requests than one caller may send
    ├── Unavailable    try again later: database unavailable, no worker, timed out waiting
    ├── EffectDenied   ask the effect's owner: the action may not perform this effect
    ├── EffectRefused  the other side of an effect refused it
    └── TaskFailed     the task itself ended without a result

Each error has a stable `code`, a `category`, a sentence that says what happened and one that says what to do.
"""

from __future__ import annotations

from typing import Any, ClassVar

_FAMILIES = ("lease", "validation", "dispatch", "task_execution", "state_transition")


def family_of(code: str) -> str | None:
    """Return the family that a code such as `DAG_STATE_TRANSITION_…` names; other codes have that of their class."""
    return next((family for family in _FAMILIES if code.startswith(f"DAG_{family.upper()}_")), None)


class HoldfastError(Exception):
    """The root: `code` is for programs, `str()` for people, `advice` says what to do next."""

    category: str = "internal"
    default_code: ClassVar[str] = "internal_error"

    def __init__(self, detail: str, *, code: str | None = None, advice: str = "", **fields: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or self.default_code
        if (family := family_of(self.code)) is not None:
            self.category = family
        self.advice = advice
        self.fields = fields

    def __str__(self) -> str:
        advice = f" {self.advice}" if self.advice else ""
        return f"{self.detail}{advice} [{self.code}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.detail, self.code, self.advice, self.fields))


def _rebuild(kind: type[HoldfastError], detail: str, code: str, advice: str, fields: dict[str, Any]) -> HoldfastError:
    return kind(detail, code=code, advice=advice, **fields)


class Invalid(HoldfastError):
    """The request itself is wrong; repeating it unchanged cannot succeed. Nothing was stored."""

    category = "validation"
    default_code = "invalid_request"


class InvalidSettings(Invalid):
    """A setting is unknown, malformed or contradicts another."""

    default_code = "invalid_settings"


class NotFound(HoldfastError):
    """The named task, queue, worker or action does not exist here."""

    category = "not_found"
    default_code = "not_found"


class Conflict(HoldfastError):
    """The state changed meanwhile: the message names what won."""

    category = "conflict"
    default_code = "conflict"


class LeaseLost(Conflict):
    """A write without the current lease. The fence refused it; nothing changed."""

    category = "lease"
    default_code = "DAG_LEASE_CONTRACT_VIOLATION"


class Unauthorized(HoldfastError):
    """The caller is not authenticated."""

    category = "auth"
    default_code = "unauthorized"


class Forbidden(HoldfastError):
    """The caller is authenticated but may not do this."""

    category = "auth"
    default_code = "forbidden"


class TooMany(HoldfastError):
    """The caller exceeded its rate limit; `retry_after_seconds` says when there is room again."""

    category = "limit"
    default_code = "too_many_requests"


class Unavailable(HoldfastError):
    """A required service is temporarily unavailable; the same request may succeed later."""

    category = "unavailable"
    default_code = "unavailable"


class StoreUnreadable(Unavailable):
    """The stored data of a request cannot be read at the moment."""

    default_code = "store_unreadable"


class DispatchFailed(Unavailable):
    """An operation that enqueues work failed as a whole: nothing changed, and it may be requested again."""

    category = "dispatch"
    default_code = "DAG_DISPATCH_ENQUEUE_RETRY_FAILED"


class WaitTimeout(Unavailable):
    """The wait ended before the task did. The task itself continues."""

    default_code = "wait_timeout"


class EffectDenied(HoldfastError):
    """The effect is governed and this action is not allowed to perform it. Nothing was sent."""

    category = "auth"
    default_code = "effect_not_allowed"


class EffectRefused(HoldfastError):
    """Raised by the function of an effect: the other side refused, and nothing happened there.

    The refusal is an answer: it is stored, and a repeat within the same generation gets it without another request.
    """

    category = "effect"
    default_code = "effect_refused"


class TaskFailed(HoldfastError):
    """The awaited task ended as failed or canceled; `fields` contain its state and last failure."""

    category = "task_execution"
    default_code = "DAG_TASK_EXECUTION_FAILED"
