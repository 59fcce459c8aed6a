"""Rules that decide whether a failure is worth a retry and name its reason.

Five sources are tried in this order, and the first match decides: what the action's code raised (`Retry`, `Fatal`), the
action's own rules (`rules`, then `retry_on`), exception types, error codes, message patterns. A failure that no source
matches is `unclassified` and is not retried, unless the policy sets `retry_unclassified`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from holdfast.core.tasks.failure import TIMEOUT_CODE, Failure, FailureReport, full_name


class RetryReason(StrEnum):
    """The name of a cause; `NOT_RETRIABLE` lists the reasons that end a task."""

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
        "httpx.RemoteProtocolError": RetryReason.CONNECTION_ERROR,
        "httpx.ProxyError": RetryReason.CONNECTION_ERROR,
        "http.client.IncompleteRead": RetryReason.CONNECTION_ERROR,
        "requests.exceptions.ChunkedEncodingError": RetryReason.CONNECTION_ERROR,
        "urllib3.exceptions.ProtocolError": RetryReason.CONNECTION_ERROR,
        "urllib3.exceptions.NewConnectionError": RetryReason.CONNECTION_ERROR,
        "urllib3.exceptions.MaxRetryError": RetryReason.CONNECTION_ERROR,
        "aiohttp.client_exceptions.ClientPayloadError": RetryReason.CONNECTION_ERROR,
        "botocore.exceptions.HTTPClientError": RetryReason.CONNECTION_ERROR,
        "smtplib.SMTPServerDisconnected": RetryReason.CONNECTION_ERROR,
        "smtplib.SMTPConnectError": RetryReason.CONNECTION_ERROR,
        "ssl.SSLEOFError": RetryReason.CONNECTION_ERROR,
        "pymongo.errors.ConnectionFailure": RetryReason.CONNECTION_ERROR,
        "aiohttp.client_exceptions.ClientConnectionError": RetryReason.CONNECTION_ERROR,
        "asyncpg.exceptions.PostgresConnectionError": RetryReason.CONNECTION_ERROR,
        "asyncpg.exceptions._base.InterfaceError": RetryReason.CONNECTION_ERROR,
        "TimeoutError": RetryReason.EXECUTION_TIMEOUT,
        "httpx.TimeoutException": RetryReason.EXECUTION_TIMEOUT,
        "requests.exceptions.Timeout": RetryReason.EXECUTION_TIMEOUT,
        "urllib3.exceptions.TimeoutError": RetryReason.EXECUTION_TIMEOUT,
        "botocore.exceptions.ConnectTimeoutError": RetryReason.EXECUTION_TIMEOUT,
        "botocore.exceptions.ReadTimeoutError": RetryReason.EXECUTION_TIMEOUT,
        "subprocess.TimeoutExpired": RetryReason.EXECUTION_TIMEOUT,
        "RateLimitError": RetryReason.RATE_LIMITED,
        "PermissionError": RetryReason.PERMISSION_DENIED,
        "ValidationError": RetryReason.VALIDATION,
        "holdfast.errors.Invalid": RetryReason.VALIDATION,
        "holdfast.errors.Unavailable": RetryReason.TRANSIENT_ERROR,
        "holdfast.errors.EffectDenied": RetryReason.PERMISSION_DENIED,
        "holdfast.errors.EffectRefused": RetryReason.FATAL,
    }
)
"""Exception classes by full name, or by class name alone for any module. Base classes match too."""

CODES: Mapping[str, RetryReason] = MappingProxyType(
    {reason.value: reason for reason in RetryReason}
    | {"429": RetryReason.RATE_LIMITED, TIMEOUT_CODE.lower(): RetryReason.EXECUTION_TIMEOUT}
    | {
        "http_401": RetryReason.PERMISSION_DENIED,
        "http_403": RetryReason.PERMISSION_DENIED,
        "http_408": RetryReason.EXECUTION_TIMEOUT,
        "http_425": RetryReason.TRANSIENT_ERROR,
        "http_429": RetryReason.RATE_LIMITED,
        "http_504": RetryReason.EXECUTION_TIMEOUT,
        "sqlstate_25006": RetryReason.TRANSIENT_ERROR,
        "sqlstate_40001": RetryReason.TRANSIENT_ERROR,
        "sqlstate_40p01": RetryReason.TRANSIENT_ERROR,
        "sqlstate_42501": RetryReason.PERMISSION_DENIED,
        "sqlstate_55p03": RetryReason.TRANSIENT_ERROR,
        "sqlstate_57014": RetryReason.EXECUTION_TIMEOUT,
        "sqlstate_57p01": RetryReason.CONNECTION_ERROR,
        "sqlstate_57p02": RetryReason.CONNECTION_ERROR,
        "sqlstate_57p03": RetryReason.CONNECTION_ERROR,
        "grpc_aborted": RetryReason.TRANSIENT_ERROR,
        "grpc_deadline_exceeded": RetryReason.EXECUTION_TIMEOUT,
        "grpc_internal": RetryReason.TRANSIENT_ERROR,
        "grpc_invalid_argument": RetryReason.INVALID_PARAMETERS,
        "grpc_permission_denied": RetryReason.PERMISSION_DENIED,
        "grpc_resource_exhausted": RetryReason.RATE_LIMITED,
        "grpc_unauthenticated": RetryReason.PERMISSION_DENIED,
        "grpc_unavailable": RetryReason.CONNECTION_ERROR,
        "errno_eagain": RetryReason.TRANSIENT_ERROR,
        "errno_eai_again": RetryReason.CONNECTION_ERROR,
        "errno_ebusy": RetryReason.TRANSIENT_ERROR,
        "errno_econnaborted": RetryReason.CONNECTION_ERROR,
        "errno_econnrefused": RetryReason.CONNECTION_ERROR,
        "errno_econnreset": RetryReason.CONNECTION_ERROR,
        "errno_ehostdown": RetryReason.CONNECTION_ERROR,
        "errno_ehostunreach": RetryReason.CONNECTION_ERROR,
        "errno_emfile": RetryReason.TRANSIENT_ERROR,
        "errno_enetdown": RetryReason.CONNECTION_ERROR,
        "errno_enetreset": RetryReason.CONNECTION_ERROR,
        "errno_enetunreach": RetryReason.CONNECTION_ERROR,
        "errno_enfile": RetryReason.TRANSIENT_ERROR,
        "errno_enobufs": RetryReason.TRANSIENT_ERROR,
        "errno_enospc": RetryReason.TRANSIENT_ERROR,
        "errno_epipe": RetryReason.CONNECTION_ERROR,
        "errno_estale": RetryReason.TRANSIENT_ERROR,
        "errno_etimedout": RetryReason.EXECUTION_TIMEOUT,
        "errno_etxtbsy": RetryReason.TRANSIENT_ERROR,
        "exit_75": RetryReason.TRANSIENT_ERROR,
        "effect_compensated": RetryReason.FATAL,
    }
    | dict.fromkeys(
        ("dataset_superseded", "dataset_build_unfinished", "dataset_busy", "dataset_stage_missing"),
        RetryReason.TRANSIENT_ERROR,
    )
)
"""Error codes in lower case. Each reason is also a code, so that a reported failure can name it. `exit_75`
(EX_TEMPFAIL) is the exit code of a command; `core/tasks/exception_codes.py` derives the codes of library exceptions."""

CODE_PREFIXES: Mapping[str, RetryReason] = MappingProxyType(
    {
        "dag_validation_": RetryReason.VALIDATION,
        "dataset_": RetryReason.VALIDATION,
        "http_4": RetryReason.INVALID_PARAMETERS,
        "http_5": RetryReason.TRANSIENT_ERROR,
        "smtp_4": RetryReason.TRANSIENT_ERROR,
        "smtp_5": RetryReason.FATAL,
        "sqlstate_08": RetryReason.CONNECTION_ERROR,
        "sqlstate_22": RetryReason.VALIDATION,
        "sqlstate_23": RetryReason.VALIDATION,
        "sqlstate_28": RetryReason.PERMISSION_DENIED,
        "sqlstate_42": RetryReason.FATAL,
        "sqlstate_53": RetryReason.TRANSIENT_ERROR,
        "sqlstate_58": RetryReason.TRANSIENT_ERROR,
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
"""Parts of a message, in the order in which they are tried. Patterns that end a task come first, so they win."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An action's own rule for a failure. Every given field must match, and at least one must be given.

    `exception` is a class or its name, with or without its module; base classes match too. `pattern` is a part of the
    message. `code` and `pattern` ignore case.
    """

    exception: str | type[BaseException] = ""
    code: str = ""
    pattern: str = ""
    reason: str = ""
    retry: bool = True
    label: str = ""
    """How `why` names this rule; if empty, it uses the rule's number in the list."""

    @classmethod
    def retry_on(cls, exception: str | type[BaseException]) -> Rule:
        """Build the rule for one entry of an action's `retry_on`."""
        name = exception if isinstance(exception, str) else full_name(exception)
        return cls(exception=name, label=f"retry_on {name}")

    def __post_init__(self) -> None:
        if isinstance(self.exception, type):
            object.__setattr__(self, "exception", full_name(self.exception))

    def matches(self, failure: Failure) -> bool:
        """Return whether this rule applies to the failure."""
        checks = [
            not self.exception or any(_is_named(name, str(self.exception)) for name in _names(failure)),
            not self.code or self.code.lower() == failure.code.lower(),
            not self.pattern or self.pattern.lower() in failure.message.lower(),
        ]
        return all(checks) and bool(self.exception or self.code or self.pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """The reason of a failure, whether it may be retried, and the rule that decided it."""

    is_retriable: bool
    reason: str
    rule: str


UNCLASSIFIED = Classification(
    is_retriable=False,
    reason=RetryReason.UNCLASSIFIED.value,
    rule="no rule, exception, code or pattern matched",
)
UNCLASSIFIED_RETRIED = Classification(
    is_retriable=True, reason=RetryReason.UNCLASSIFIED.value, rule="policy retry_unclassified = true"
)


def classify(failure: Failure, rules: Sequence[Rule] = ()) -> Classification:
    """Classify a failure that user code raised or reported."""
    return ruled(failure, rules) or _first(failure, _by_exception, _by_code, _by_pattern) or UNCLASSIFIED


def classify_unfinished(failure: Failure, rules: Sequence[Rule], *, otherwise: RetryReason) -> Classification:
    """Classify an attempt that timed out or was lost.

    The engine wrote the message, so patterns and exception types must not turn it into a final failure. Only a
    retriable code and the action's own rules count.
    """
    coded = _by_code(failure)
    known = coded if coded and coded.is_retriable else _named(otherwise, f"outcome {otherwise}")
    return ruled(failure, rules) or known


def ruled(failure: Failure, rules: Sequence[Rule]) -> Classification | None:
    """Classify by what the action's code raised and by its rules; None if neither applies."""
    match failure.said:
        case FailureReport.RETRY:
            return _named(RetryReason.REQUESTED, "raised Retry")
        case FailureReport.FATAL:
            return _named(RetryReason.FATAL, "raised Fatal")
        case None:
            return _by_rules(failure, rules)


def _by_rules(failure: Failure, rules: Sequence[Rule]) -> Classification | None:
    for number, rule in enumerate(rules, start=1):
        if rule.matches(failure):
            usual = RetryReason.TRANSIENT_ERROR if rule.retry else RetryReason.FATAL
            reason = rule.reason or usual.value
            return Classification(is_retriable=rule.retry, reason=reason, rule=rule.label or f"action rule {number}")
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
    """Return whether a message contains a pattern. A number must not be part of a longer one: 429 is not in 14290."""
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
