"""Whether a failure is worth another attempt, and what to call it.

Five sources are asked in this order, and the first that knows decides: what the code said, the action's own
rules, exception types, error codes, message patterns. What none of them knows is not retried.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from holdfast.core.failure import TIMEOUT_CODE, Failure, Said, full_name


class RetryReason(StrEnum):
    """The name of a cause; `NOT_RETRIABLE` lists those that end a task."""

    REQUESTED = "requested"
    QUEUE_TIMEOUT = "queue_timeout"
    WORKER_UNAVAILABLE = "worker_unavailable"
    EXECUTION_TIMEOUT = "execution_timeout"
    HEARTBEAT_STALE = "heartbeat_stale"
    TRANSIENT_ERROR = "transient_error"
    CONNECTION_ERROR = "connection_error"
    RATE_LIMITED = "rate_limited"
    LAUNCH_FAILED = "launch_failed"
    LOST = "lost"
    MANUAL = "manual"
    FATAL = "fatal"
    VALIDATION = "validation"
    PERMISSION_DENIED = "permission_denied"
    ACTION_NOT_FOUND = "action_not_found"
    INVALID_PARAMETERS = "invalid_parameters"
    UNCLASSIFIED = "unclassified"


NOT_RETRIABLE: frozenset[RetryReason] = frozenset(
    {
        RetryReason.FATAL,
        RetryReason.VALIDATION,
        RetryReason.PERMISSION_DENIED,
        RetryReason.ACTION_NOT_FOUND,
        RetryReason.INVALID_PARAMETERS,
        RetryReason.UNCLASSIFIED,
    }
)

EXCEPTIONS: Mapping[str, RetryReason] = MappingProxyType(
    {
        "ConnectionError": RetryReason.CONNECTION_ERROR,
        "ConnectionRefusedError": RetryReason.CONNECTION_ERROR,
        "ConnectionResetError": RetryReason.CONNECTION_ERROR,
        "ConnectionAbortedError": RetryReason.CONNECTION_ERROR,
        "BrokenPipeError": RetryReason.CONNECTION_ERROR,
        "httpx.NetworkError": RetryReason.CONNECTION_ERROR,
        "aiohttp.client_exceptions.ClientConnectionError": RetryReason.CONNECTION_ERROR,
        "asyncpg.exceptions.PostgresConnectionError": RetryReason.CONNECTION_ERROR,
        "TimeoutError": RetryReason.EXECUTION_TIMEOUT,
        "httpx.TimeoutException": RetryReason.EXECUTION_TIMEOUT,
        "requests.exceptions.Timeout": RetryReason.EXECUTION_TIMEOUT,
        "subprocess.TimeoutExpired": RetryReason.EXECUTION_TIMEOUT,
        "asyncpg.exceptions.SerializationError": RetryReason.TRANSIENT_ERROR,
        "asyncpg.exceptions.DeadlockDetectedError": RetryReason.TRANSIENT_ERROR,
        "psycopg.errors.SerializationFailure": RetryReason.TRANSIENT_ERROR,
        "psycopg.errors.DeadlockDetected": RetryReason.TRANSIENT_ERROR,
        "RateLimitError": RetryReason.RATE_LIMITED,
        "PermissionError": RetryReason.PERMISSION_DENIED,
        "ValidationError": RetryReason.VALIDATION,
        "holdfast.errors.Invalid": RetryReason.VALIDATION,
        "holdfast.errors.Unavailable": RetryReason.TRANSIENT_ERROR,
        "holdfast.errors.EffectDenied": RetryReason.PERMISSION_DENIED,
        "holdfast.errors.EffectRefused": RetryReason.FATAL,
    }
)
"""Exception classes by full name, or by class name alone for any module; base classes count too."""

CODES: Mapping[str, RetryReason] = MappingProxyType(
    {reason.value: reason for reason in RetryReason}
    | {"429": RetryReason.RATE_LIMITED, TIMEOUT_CODE.lower(): RetryReason.EXECUTION_TIMEOUT}
    | {
        "http_401": RetryReason.PERMISSION_DENIED,
        "http_403": RetryReason.PERMISSION_DENIED,
        "http_408": RetryReason.EXECUTION_TIMEOUT,
        "http_425": RetryReason.TRANSIENT_ERROR,
        "http_429": RetryReason.RATE_LIMITED,
        "http_500": RetryReason.TRANSIENT_ERROR,
        "http_502": RetryReason.TRANSIENT_ERROR,
        "http_503": RetryReason.TRANSIENT_ERROR,
        "http_504": RetryReason.EXECUTION_TIMEOUT,
        "exit_75": RetryReason.TRANSIENT_ERROR,
        "effect_compensated": RetryReason.FATAL,
    }
    | dict.fromkeys(
        ("dataset_superseded", "dataset_build_unfinished", "dataset_busy", "dataset_stage_missing"),
        RetryReason.TRANSIENT_ERROR,
    )
)
"""Error codes in lower case. Each reason is a code too, so that whoever reports a failure may name it. `http_503` is an
answer of the `http` runtime, `exit_75` (EX_TEMPFAIL) the exit code of a command."""

CODE_PREFIXES: Mapping[str, RetryReason] = MappingProxyType(
    {
        "dag_validation_": RetryReason.VALIDATION,
        "dataset_": RetryReason.VALIDATION,
        "http_4": RetryReason.INVALID_PARAMETERS,
        "http_5": RetryReason.FATAL,
    }
)

PATTERNS: Mapping[str, RetryReason] = MappingProxyType(
    {
        "validation": RetryReason.VALIDATION,
        "permission denied": RetryReason.PERMISSION_DENIED,
        "action not found": RetryReason.ACTION_NOT_FOUND,
        "invalid parameters": RetryReason.INVALID_PARAMETERS,
        "queue ttl expired": RetryReason.QUEUE_TIMEOUT,
        "worker unavailable": RetryReason.WORKER_UNAVAILABLE,
        "timeout": RetryReason.EXECUTION_TIMEOUT,
        "timed out": RetryReason.EXECUTION_TIMEOUT,
        "heartbeat stale": RetryReason.HEARTBEAT_STALE,
        "transient": RetryReason.TRANSIENT_ERROR,
        "temporary": RetryReason.TRANSIENT_ERROR,
        "connection refused": RetryReason.CONNECTION_ERROR,
        "connection reset": RetryReason.CONNECTION_ERROR,
        "rate limited": RetryReason.RATE_LIMITED,
        "429": RetryReason.RATE_LIMITED,
    }
)
"""Parts of a message, in the order they are tried: those that end a task come first, so they win."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An action's own opinion about a failure; every field given must match, and at least one must be given.

    `exception` is a class or its name, with or without its module; base classes match too. `pattern` is a part
    of the message. `code` and `pattern` ignore case.
    """

    exception: str | type[BaseException] = ""
    code: str = ""
    pattern: str = ""
    reason: str = ""
    retry: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.exception, type):
            object.__setattr__(self, "exception", full_name(self.exception))

    def matches(self, failure: Failure) -> bool:
        """Tell whether this rule speaks about the failure."""
        checks = [
            not self.exception or any(_is_named(name, str(self.exception)) for name in _names(failure)),
            not self.code or self.code.lower() == failure.code.lower(),
            not self.pattern or self.pattern.lower() in failure.message.lower(),
        ]
        return all(checks) and bool(self.exception or self.code or self.pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """What a failure is called, whether it may be retried, and what told us so."""

    is_retriable: bool
    reason: str
    rule: str


UNCLASSIFIED = Classification(
    is_retriable=False,
    reason=RetryReason.UNCLASSIFIED.value,
    rule="no rule, exception, code or pattern matched",
)


def classify(failure: Failure, rules: Sequence[Rule] = ()) -> Classification:
    """Name a failure that user code raised or reported."""
    return ruled(failure, rules) or _first(failure, _by_exception, _by_code, _by_pattern) or UNCLASSIFIED


def classify_unfinished(failure: Failure, rules: Sequence[Rule], *, otherwise: RetryReason) -> Classification:
    """Name the cause of an attempt that timed out or was lost.

    The engine wrote the message, so neither patterns nor exception types may turn it into something final;
    only the code itself and the action's rules may.
    """
    coded = _by_code(failure)
    known = coded if coded and coded.is_retriable else _named(otherwise, f"outcome {otherwise}")
    return ruled(failure, rules) or known


def ruled(failure: Failure, rules: Sequence[Rule]) -> Classification | None:
    """Ask only those who know the action: its code and its rules."""
    match failure.said:
        case Said.RETRY:
            return _named(RetryReason.REQUESTED, "raised Retry")
        case Said.FATAL:
            return _named(RetryReason.FATAL, "raised Fatal")
        case None:
            return _by_rules(failure, rules)


def _by_rules(failure: Failure, rules: Sequence[Rule]) -> Classification | None:
    for number, rule in enumerate(rules, start=1):
        if rule.matches(failure):
            usual = RetryReason.TRANSIENT_ERROR if rule.retry else RetryReason.FATAL
            reason = rule.reason or usual.value
            return Classification(is_retriable=rule.retry, reason=reason, rule=f"action rule {number}")
    return None


def _by_exception(failure: Failure) -> Classification | None:
    for name in _names(failure):
        for known in (name, name.rpartition(".")[2]):
            if reason := EXCEPTIONS.get(known):
                return _named(reason, f"exception {known}")
    return None


def _by_code(failure: Failure) -> Classification | None:
    code = failure.code.lower()
    prefixed = (reason for prefix, reason in CODE_PREFIXES.items() if code.startswith(prefix))
    reason = CODES.get(code) or next(prefixed, None)
    return _named(reason, f"code {failure.code}") if reason else None


def _by_pattern(failure: Failure) -> Classification | None:
    message = failure.message.lower()
    for pattern, reason in PATTERNS.items():
        if _occurs(pattern, message):
            return _named(reason, f'pattern "{pattern}"')
    return None


def _occurs(pattern: str, message: str) -> bool:
    """Find a part of a message; a number must stand alone, or 429 would be found in 14290."""
    if pattern.isdigit():
        return re.search(rf"(?<![0-9]){pattern}(?![0-9])", message) is not None
    return pattern in message


def _first(failure: Failure, *sources: Callable[[Failure], Classification | None]) -> Classification | None:
    answers = (source(failure) for source in sources)
    return next((answer for answer in answers if answer), None)


def _named(reason: RetryReason, rule: str) -> Classification:
    return Classification(is_retriable=reason not in NOT_RETRIABLE, reason=reason.value, rule=rule)


def _names(failure: Failure) -> tuple[str, ...]:
    return (failure.type, *failure.bases) if failure.type else ()


def _is_named(name: str, wanted: str) -> bool:
    return name == wanted or name.endswith(f".{wanted}")
