"""Options of `@app.action(…)`, checked at decoration: a misspelt option is refused, never ignored."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, TypeAlias

from holdfast.authoring.action import Isolation, retries_within
from holdfast.core.tasks.classify import Rule
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.core.values.duration import seconds_of
from holdfast.errors import Invalid

RetryOn: TypeAlias = type[BaseException] | str
"""An exception class, or its name with or without its module."""

OPTIONS = {
    "name": "name of the action, prefixed with the app's name; by default the function's name",
    "queue": "queue of its tasks; default `default`",
    "priority": "0 to 9, lower runs first; default 5",
    "max_retries": "maximum number of retries after failures; default: the setting `retry.max_retries`, else "
    "3, or 1 with a launcher",
    "max_attempts": "maximum number of failed attempts, which is `max_retries` + 1; set one of the two",
    "max_losses": "maximum number of retries after attempts that were lost with their worker; default 3",
    "timeout": "execution timeout of an attempt; default none",
    "isolation": '`"process"` runs it in a child process that can be killed; otherwise plain functions run in threads',
    "memory_bytes_max": "memory limit of that child process",
    "retry_on": "exceptions that are always retried, whatever their class: an exception class, its name, or "
    "a tuple of them",
    "rules": "rules that classify its failures: `hf.Rule`, see [failures](failures.md)",
    "retry": "whether to retry, and the backoff between retries: an `hf.RetryPolicy`, or a mapping of "
    "`base_backoff_secs`, `backoff_multiplier`, `max_backoff_secs`, `jitter_factor`, `enabled` …; "
    "durations may be text",
    "breaker": "circuit breaker, which stops attempts for a while when too many fail: `hf.Breaker`, or `True`",
    "quota": "maximum number of retries in a window: `hf.Quota`, or `True`",
    "launcher": "launcher that starts a worker for each task, see [launchers](launchers.md)",
}
"""Named like the parameters of the overloads of `App.action`; a test compares the two."""
_RETRY_NAMES = {"enabled": "is_enabled"}
"""Policy fields whose name in settings and docs differs from the field name."""
_SHOWN_NAMES = {inner: shown for shown, inner in _RETRY_NAMES.items()}
_DURATIONS = ("base_backoff_secs", "max_backoff_secs", "timeout_seconds", "queue_ttl_seconds")


def known_options(options: Mapping[str, Any]) -> None:
    """Refuse unknown options, and suggest the closest known name."""
    for name in options:
        if name not in OPTIONS:
            raise Invalid(
                f"@app.action has no option {name!r}.", code="invalid_action", advice=_near(name, OPTIONS), field=name
            )


def the_function(passed: tuple[Any, ...]) -> Callable[..., Any]:
    """Return the function that `@app.action` decorates; refuse anything else."""
    if len(passed) == 1 and callable(passed[0]):
        function: Callable[..., Any] = passed[0]
        return function
    text = ", ".join(repr(argument)[:80] for argument in passed) or "nothing"
    raise Invalid(
        f"@app.action takes a function, not {text}.",
        code="invalid_action",
        advice='Name its options: @app.action(queue="mail").',
    )


def name_of(function: Callable[..., Any]) -> str:
    """Return the function's own name; a callable without one needs an explicit name."""
    if not isinstance(name := getattr(function, "__name__", None), str):
        raise Invalid(
            f"{function!r:.80} has no `__name__`.", code="invalid_action", advice='Use @app.action(name="…").'
        )
    return name


def overrides_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy fields that an action sets."""
    overrides = _retry(options.get("retry"))
    if (rules := options.get("rules")) is not None:
        overrides["rules"] = _rules(rules)
    if (retried := options.get("retry_on")) is not None:
        overrides["rules"] = (*overrides.get("rules", ()), *_retry_on(retried))
    if (attempts := options.get("max_attempts")) is not None:
        overrides["max_retries"] = retries_within(attempts)
    for name in ("max_retries", "max_losses", "memory_bytes_max"):
        if (value := options.get(name)) is not None:
            overrides[name] = value
    if (timeout := options.get("timeout")) is not None:
        overrides["timeout_seconds"] = seconds_of(timeout)
    replace(RetryPolicy(), **overrides).validated()
    return overrides


def _retry(passed: object) -> dict[str, Any]:
    if passed is None:
        return {}
    known = [field.name for field in fields(RetryPolicy)]
    if isinstance(passed, RetryPolicy):
        plain = RetryPolicy()
        return {name: value for name in known if (value := getattr(passed, name)) != getattr(plain, name)}
    if not isinstance(passed, Mapping):
        shown = ", ".join(_SHOWN_NAMES.get(name, name) for name in known)
        raise Invalid(
            f"retry= is {str(passed)[:80]!r}.",
            code="invalid_policy",
            advice=f"Pass an hf.RetryPolicy, or a mapping of {shown}.",
        )
    said: dict[str, Any] = {_RETRY_NAMES.get(str(name), str(name)): value for name, value in passed.items()}
    if unknown := [name for name in said if name not in known]:
        advice = _near(unknown[0], [_SHOWN_NAMES.get(name, name) for name in known])
        raise Invalid(f"retry= has no field {', '.join(sorted(unknown))}.", code="invalid_policy", advice=advice)
    if "rules" in said:
        said["rules"] = _rules(said["rules"])
    for name in _DURATIONS:
        if isinstance(said.get(name), str | timedelta):
            said[name] = seconds_of(said[name])
    return said


def _rules(passed: object) -> tuple[Rule, ...]:
    if isinstance(passed, list | tuple) and all(isinstance(rule, Rule) for rule in passed):
        return tuple(passed)
    raise Invalid(
        f"rules= is {str(passed)[:80]}.",
        code="invalid_policy",
        advice='Pass a list of rules: [hf.Rule(exception="LookupError", retry=False)].',
    )


def _retry_on(passed: object) -> tuple[Rule, ...]:
    entries = tuple(passed) if isinstance(passed, list | tuple) else (passed,)
    for entry in entries:
        is_class = isinstance(entry, type) and issubclass(entry, BaseException)
        if not is_class and not (isinstance(entry, str) and entry):
            raise Invalid(
                f"retry_on= has {str(entry)[:80]!r}.",
                code="invalid_policy",
                advice="It takes exception classes or their names: retry_on=(MyError, TimeoutError).",
                field="retry_on",
            )
    return tuple(map(Rule.retry_on, entries))


def _near(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f"Did you mean {near[0]}?" if near else f"Known names: {', '.join(known)}."


def check_memory(overrides: Mapping[str, Any], isolation: Isolation) -> None:
    """Refuse a memory limit that cannot be enforced: a coroutine or a thread shares the memory of its worker."""
    if overrides.get("memory_bytes_max") is not None and isolation is not Isolation.PROCESS:
        raise Invalid(
            f"memory_bytes_max cannot be enforced with isolation={isolation.value!r}.",
            code="invalid_action",
            advice='Add isolation="process".',
            field="memory_bytes_max",
        )


def isolation_of(function: Callable[..., Any], requested: object) -> Isolation:
    """Return where the function runs: as its action requests, if that is possible."""
    is_async = inspect.iscoroutinefunction(function)
    if requested is None:
        return Isolation.COROUTINE if is_async else Isolation.THREAD
    try:
        isolation = Isolation(str(requested))
    except ValueError:
        choices = ", ".join(Isolation)
        raise Invalid(
            f"isolation={requested!r} is unknown.", code="invalid_action", advice=f"Choose one of {choices}."
        ) from None
    if isolation is Isolation.COROUTINE and not is_async:
        raise Invalid(
            f"{function.__qualname__} is not `async def`.",
            code="invalid_action",
            advice='Use isolation="thread".',
        )
    if isolation is Isolation.THREAD and is_async:
        raise Invalid(
            f"{function.__qualname__} is `async def` and cannot run in a plain thread.",
            code="invalid_action",
            advice='Use isolation="process", or make it a plain function.',
        )
    return isolation
