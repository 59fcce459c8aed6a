"""Every error Holdfast raises, as one tree branched by what the caller can do about it.

    HoldfastError
    ├── Invalid        fix the request: bad input, bad settings, a broken definition
    ├── NotFound       the thing named does not exist (or belongs to another tenant)
    ├── Conflict       somebody else won: stale lease, reused key, wrong state
    ├── Unauthorized   say who you are
    ├── Forbidden      you may not do this
    ├── TooMany        slow down: more requests than one caller may send
    ├── Unavailable    try again later: database away, no worker, timed out waiting
    ├── EffectDenied   ask whoever governs it: the action may not do this effect
    ├── EffectRefused  the other side of an effect said no
    └── TaskFailed     the task itself ended without a result

Each error carries a stable `code`, a `category`, a sentence saying what happened and one saying what to do.
"""

from __future__ import annotations

from typing import Any, ClassVar

_FAMILIES = ("lease", "validation", "dispatch", "task_execution", "state_transition")


def family_of(code: str) -> str | None:
    """The family that a code names itself, as `DAG_STATE_TRANSITION_…` does; the others have that of their branch."""
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
    """No such task, queue, worker or action here."""

    category = "not_found"
    default_code = "not_found"


class Conflict(HoldfastError):
    """The world moved on: the answer names who or what won."""

    category = "conflict"
    default_code = "conflict"


class LeaseLost(Conflict):
    """A write without the current lease. The fence refused it; nothing changed."""

    category = "lease"
    default_code = "DAG_LEASE_CONTRACT_VIOLATION"


class Unauthorized(HoldfastError):
    """Nobody known asks."""

    category = "auth"
    default_code = "unauthorized"


class Forbidden(HoldfastError):
    """Whoever asks is known and may not do this."""

    category = "auth"
    default_code = "forbidden"


class TooMany(HoldfastError):
    """More than one caller may ask for in this time; `retry_after_seconds` says when there is room again."""

    category = "limit"
    default_code = "too_many_requests"


class Unavailable(HoldfastError):
    """Something needed is away for now; the same request may succeed later."""

    category = "unavailable"
    default_code = "unavailable"


class StoreUnreadable(Unavailable):
    """What a request is about cannot be read for now."""

    default_code = "store_unreadable"


class DispatchFailed(Unavailable):
    """What was to put work into a queue failed as a whole: nothing changed, and it may be asked for again."""

    category = "dispatch"
    default_code = "DAG_DISPATCH_ENQUEUE_RETRY_FAILED"


class WaitTimeout(Unavailable):
    """The wait ended before the task did. The task itself goes on."""

    default_code = "wait_timeout"


class EffectDenied(HoldfastError):
    """The effect is governed and this action is not allowed to do it. Nothing was sent."""

    category = "auth"
    default_code = "effect_not_allowed"


class EffectRefused(HoldfastError):
    """Raised by the function of an effect: the other side refused, and nothing happened there.

    It is an answer: stored, and given again to a repeat within the same generation without asking.
    """

    category = "effect"
    default_code = "effect_refused"


class TaskFailed(HoldfastError):
    """The awaited task ended as failed or canceled; `fields` carry its state and last failure."""

    category = "task_execution"
    default_code = "DAG_TASK_EXECUTION_FAILED"
