"""Retry policy: how often, how fast and how long a task may be tried, as one immutable value.

Stored rows refer to a policy by the digest of its JSON, so the keys keep one order and the numbers one type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from holdfast.core.tasks.classify import Rule
from holdfast.core.values.duration import DAY_SECONDS, human
from holdfast.errors import Invalid

RETRIES_USUAL = 3
RETRIES_LAUNCHED = 1
"""The default where a launcher starts a worker for each attempt, because every attempt costs a start."""
BUDGET_MAX = 10_000
BACKOFF_SECONDS_MAX = 30 * DAY_SECONDS
SECONDS_MAX = 10 * 365 * DAY_SECONDS
MULTIPLIER_MAX = 1_000.0
MEMORY_BYTES_MAX = 2**50
RULES_MAX = 100
RULE_CHARACTERS_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The limits that an action or task sets. `None` means no limit of its own."""

    max_retries: int = RETRIES_USUAL
    max_losses: int = 3
    is_enabled: bool = True
    base_backoff_secs: float = 1.0
    max_backoff_secs: float = 300.0
    backoff_multiplier: float = 2.0
    jitter_factor: float = 0.2
    timeout_seconds: float | None = None
    rules: tuple[Rule, ...] = ()
    queue_ttl_seconds: float | None = None
    memory_bytes_max: int | None = None
    retry_unclassified: bool = False

    @property
    def max_attempts(self) -> int:
        """Return how many attempts may fail or time out before the task fails."""
        return self.max_retries + 1

    def validated(self) -> RetryPolicy:
        """Return this policy, or raise `Invalid` (`invalid_policy`) naming the field and its bounds."""
        for name, (lowest, highest, is_whole) in _BOUNDS.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if not _is_number(value, is_whole=is_whole) or not lowest <= value <= highest:
                kind = "a whole number" if is_whole else "a number"
                raise _refusal(
                    name, value, f"it must be {kind} from {_shown(lowest)} to {_shown(highest)}{_unit(name, highest)}"
                )
        if self.jitter_factor >= 1:
            raise _refusal("jitter_factor", self.jitter_factor, "it must be below 1")
        for name in ("is_enabled", "retry_unclassified"):
            if not isinstance(getattr(self, name), bool):
                shown = "is_enabled (enabled)" if name == "is_enabled" else name
                raise _refusal(shown, getattr(self, name), "it must be true or false")
        _check_rules(self.rules)
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the policy as plain JSON values, keys in field order; equal policies give equal bytes."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, (_, _, is_whole) in _BOUNDS.items():
            if plain[name] is not None:
                plain[name] = int(plain[name]) if is_whole else float(plain[name])
        return plain | {"rules": [asdict(rule) for rule in self.rules]}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> RetryPolicy:
        """Read a stored policy. Unknown keys are ignored, because a newer version may have written them."""
        known = {field.name: stored[field.name] for field in fields(cls) if field.name in stored}
        rules = known.pop("rules", ())
        if not isinstance(rules, list | tuple):
            raise _refusal("rules", rules, "it must be a list")
        return cls(**known, rules=tuple(_rule_of(rule) for rule in rules)).validated()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDefaults:
    """The policies that actions and tasks start from; `launched` applies where a launcher starts a worker per
    attempt.
    """

    usual: RetryPolicy = RetryPolicy()
    launched: RetryPolicy = RetryPolicy(max_retries=RETRIES_LAUNCHED)

    @classmethod
    def of(cls, policy: RetryPolicy, *, max_retries: int | None) -> PolicyDefaults:
        """Build both from one policy. An explicit `max_retries` applies to both, even if it equals a default."""
        if max_retries is not None:
            policy = replace(policy, max_retries=max_retries)
            return cls(usual=policy.validated(), launched=policy)
        return cls(
            usual=replace(policy, max_retries=RETRIES_USUAL).validated(),
            launched=replace(policy, max_retries=RETRIES_LAUNCHED),
        )


_BOUNDS: Mapping[str, tuple[float, float, bool]] = {
    "max_retries": (0, BUDGET_MAX, True),
    "max_losses": (0, BUDGET_MAX, True),
    "base_backoff_secs": (0, BACKOFF_SECONDS_MAX, False),
    "max_backoff_secs": (0, BACKOFF_SECONDS_MAX, False),
    "backoff_multiplier": (1, MULTIPLIER_MAX, False),
    "jitter_factor": (0, 1, False),
    "timeout_seconds": (0.001, SECONDS_MAX, False),
    "queue_ttl_seconds": (0.001, SECONDS_MAX, False),
    "memory_bytes_max": (1, MEMORY_BYTES_MAX, True),
}
_OPTIONAL = frozenset({"timeout_seconds", "queue_ttl_seconds", "memory_bytes_max"})


def _shown(number: float) -> str:
    """Format a number as `2_592_000`, never as `2.592e+06`."""
    return f"{number:,.15g}".replace(",", "_")


def _unit(name: str, highest: float) -> str:
    """Return the unit and the maximum as a duration, if the field is in seconds."""
    return f" seconds ({human(highest)})" if name.endswith(("_secs", "_seconds")) else ""


def _is_number(value: object, *, is_whole: bool) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and not is_whole and math.isfinite(value))


def _check_rules(rules: tuple[Rule, ...]) -> None:
    if len(rules) > RULES_MAX:
        raise _refusal("rules", len(rules), f"at most {RULES_MAX} rules are allowed")
    for number, rule in enumerate(rules, start=1):
        texts = (rule.exception, rule.code, rule.pattern, rule.reason, rule.label)
        if not all(map(_is_short, texts)):
            raise _refusal(
                f"rules[{number}]", rule, f"each text has at most {RULE_CHARACTERS_MAX} printable characters"
            )
        if not isinstance(rule.retry, bool):
            raise _refusal(f"rules[{number}].retry", rule.retry, "it must be true or false")
        if not (rule.exception or rule.code or rule.pattern):
            raise _refusal(f"rules[{number}]", rule, 'it matches nothing; exception="Exception" matches any')


def _is_short(text: object) -> bool:
    return isinstance(text, str) and text.isprintable() and len(text) <= RULE_CHARACTERS_MAX


def _rule_of(stored: Any) -> Rule:
    if not isinstance(stored, Mapping):
        raise _refusal("rules", stored, "each rule must be an object")
    names = [field.name for field in fields(Rule)]
    return Rule(**{name: stored[name] for name in names if name in stored})


def _refusal(field: str, value: object, why: str) -> Invalid:
    return Invalid(
        f"The retry policy's {field} is {str(value)[:80]}: {why}.",
        code="invalid_policy",
        field=field,
        value=str(value)[:80],
    )
