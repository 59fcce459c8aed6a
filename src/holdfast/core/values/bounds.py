"""Limits of everything that a caller can send, and the checks that enforce them.

Each check returns the accepted value or raises `Invalid` with its own code, naming field and limit. They take any
object: a value from HTTP or YAML is trusted only after it passed its check.
"""

from __future__ import annotations

import re
from datetime import timedelta

from holdfast.core.values.duration import DAY_SECONDS, seconds_of
from holdfast.errors import Invalid, NotFound

INPUT_BYTES_MAX = 1024 * 1024
OUTPUT_BYTES_MAX = 8 * 1024 * 1024
NODE_INPUT_BYTES_MAX = 64 * 1024 * 1024
NESTING_MAX = 100
TAGS_MAX = 20
TAG_CHARACTERS_MAX = 64
KEY_CHARACTERS_MAX = 256
NAME_CHARACTERS_MAX = 128
REASON_CHARACTERS_MAX = 1000
ACTOR_CHARACTERS_MAX = 256
WORKER_ID_CHARACTERS_MAX = 128
PRIORITY_MIN, PRIORITY_MAX, PRIORITY_DEFAULT = 0, 9, 5
DELAY_SECONDS_MAX = 10 * 365 * DAY_SECONDS
BATCH_MAX = 10_000
ID_DIGITS_MAX = 19
ID_MAX = 2**63 - 1

_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.:-]{{0,{NAME_CHARACTERS_MAX - 1}}}")
_BRACKETS = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)|[\[\]{}]', re.DOTALL)


def valid_input(payload: bytes, *, bytes_max: int = INPUT_BYTES_MAX) -> bytes:
    """Accept an encoded JSON input by size and nesting, without parsing it."""
    return _valid_payload("input", payload, bytes_max)


def valid_output(payload: bytes, *, bytes_max: int = OUTPUT_BYTES_MAX) -> bytes:
    """Accept an encoded JSON output by size and nesting, without parsing it."""
    return _valid_payload("output", payload, bytes_max)


def valid_queue(name: object) -> str:
    """Accept a queue name."""
    return _valid_name("queue", name)


def valid_action(name: object) -> str:
    """Accept an action name, such as `shop.send_receipt`."""
    return _valid_name("action", name)


def valid_flow(name: object) -> str:
    """Accept the name of a flow, such as `shop.nightly`."""
    return _valid_name("flow", name)


def valid_tenant(name: object) -> str:
    """Accept the name of a tenant."""
    return _valid_name("tenant", name)


def valid_effect(name: object) -> str:
    """Accept the name of an effect or a step, such as `smtp.send`."""
    return _valid_name("effect", name)


def valid_token_name(name: object) -> str:
    """Accept the name of an API token, such as `ci-deploy`."""
    return _valid_name("token name", name)


def valid_key(key: object) -> str:
    """Accept an idempotency key: 1 to 256 printable characters, not only spaces."""
    if not isinstance(key, str) or not key.strip() or not key.isprintable() or len(key) > KEY_CHARACTERS_MAX:
        limit = f"1 to {KEY_CHARACTERS_MAX} printable characters, not blank"
        raise _refusal("invalid_key", "key", key, limit, "Use a stable identifier of the request, such as an order id.")
    return key


def valid_tags(tags: object) -> tuple[str, ...]:
    """Accept up to 20 tags, and drop duplicates."""
    if not isinstance(tags, list | tuple | set | frozenset) or len(tags) > TAGS_MAX:
        raise _refusal("invalid_tag", "tags", tags, f"a list of at most {TAGS_MAX} texts")
    return tuple(dict.fromkeys(_valid_tag(tag) for tag in tags))


def valid_priority(priority: object) -> int:
    """Accept a priority from 0 (first) to 9 (last)."""
    limit = f"a whole number from {PRIORITY_MIN} (first) to {PRIORITY_MAX} (last)"
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise _refusal("invalid_priority", "priority", priority, limit)
    if not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise _refusal("invalid_priority", "priority", priority, limit)
    return priority


def valid_delay(delay: str | int | float | timedelta) -> float:
    """Accept a delay of 0 to 10 years as text, number or timedelta, and return it in seconds."""
    limit = "a duration from 0 to 10 years"
    try:
        seconds = seconds_of(delay)
    except Invalid as error:
        raise _refusal("invalid_delay", "delay", delay, limit, error.advice) from error
    if seconds > DELAY_SECONDS_MAX:
        raise _refusal("invalid_delay", "delay", delay, limit)
    return seconds


def valid_worker_id(worker_id: object) -> str:
    """Accept the id of a worker incarnation."""
    return _valid_text("worker_id", worker_id, WORKER_ID_CHARACTERS_MAX, code="invalid_worker_id")


def valid_reason(reason: object) -> str:
    """Accept the reason for a change; it is mandatory and goes to the audit log."""
    return _valid_text("reason", reason, REASON_CHARACTERS_MAX, code="invalid_reason")


def required_reason(reason: str) -> str:
    """Return the reason; refuse an empty one."""
    if not reason.strip():
        raise Invalid(
            "A reason is required, so that the record explains the change.",
            code="reason_required",
            advice="Pass it in `reason`.",
        )
    return valid_reason(reason)


def valid_actor(actor: object) -> str:
    """Accept the name of the person or program that makes a change."""
    return _valid_text("actor", actor, ACTOR_CHARACTERS_MAX, code="invalid_actor")


def valid_batch(count: int) -> int:
    """Accept the size of one bulk request."""
    if not 0 < count <= BATCH_MAX:
        raise _refusal("invalid_batch", "batch", count, f"1 to {BATCH_MAX} items", "Send several batches.")
    return count


def task_number(task_id: object) -> int:
    """Convert a public task id, an opaque string, to its number; `NotFound` if it cannot be one."""
    text = str(task_id)
    if not is_id(text):
        raise NotFound(f"There is no task {text[:80]!r}.", code="task_not_found", advice="Task ids look like 1042.")
    return int(text)


def member_number(member_id: object) -> int:
    """Convert a public member id to its number; `NotFound` if it cannot be one."""
    text = str(member_id)
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise NotFound(
            f"There is no member {text[:80]!r}.", code="member_not_found", advice="See `holdfast member list`."
        )
    return int(text)


def run_number(run_id: object) -> int:
    """Convert a public run id to its number; `NotFound` if it cannot be one."""
    text = str(run_id)
    if not is_id(text):
        raise NotFound(
            f"There is no run {text[:80]!r}.",
            code="DAG_VALIDATION_DAG_RUN_NOT_FOUND",
            advice="Run ids look like 1042; `holdfast run list --flow NAME` shows those of a flow.",
        )
    return int(text)


def no_run(run_id: object) -> NotFound:
    """Build the error for a run that does not exist or belongs to another tenant."""
    return NotFound(
        f"There is no run {run_id}.", code="DAG_VALIDATION_DAG_RUN_NOT_FOUND", advice="See `holdfast run list`."
    )


def is_id(text: str) -> bool:
    """Return whether a text can be an id: a number that fits in a bigint."""
    return text.isascii() and text.isdigit() and len(text) <= ID_DIGITS_MAX and int(text) <= ID_MAX


def nesting_of(payload: bytes, *, at_most: int = NESTING_MAX) -> int:
    """Measure how deep arrays and objects nest; stop counting past `at_most`.

    Linear in the payload. Brackets inside strings do not count.
    """
    depth = deepest = 0
    for token in _BRACKETS.finditer(payload):
        match token.group()[:1]:
            case b"{" | b"[":
                depth += 1
                deepest = max(deepest, depth)
            case b"}" | b"]":
                depth -= 1
        if deepest > at_most:
            break
    return deepest


def _valid_payload(field: str, payload: bytes, bytes_max: int) -> bytes:
    if len(payload) > bytes_max:
        raise Invalid(
            f"The {field} has {len(payload)} bytes; at most {bytes_max} are allowed.",
            code="payload_too_large",
            advice="Store large data elsewhere and send a reference to it.",
            field=field,
            limit=bytes_max,
        )
    may_be_deep = payload.count(b"{") + payload.count(b"[") > NESTING_MAX
    if may_be_deep and nesting_of(payload) > NESTING_MAX:
        raise Invalid(
            f"The {field} nests deeper than {NESTING_MAX} levels.",
            code="payload_too_deep",
            advice="Flatten it, or send it as text.",
            field=field,
            limit=NESTING_MAX,
        )
    return payload


def _valid_name(field: str, name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        limit = f"1 to {NAME_CHARACTERS_MAX} letters, digits or _ . : -, beginning with a letter, digit or _"
        raise _refusal("invalid_name", field, name, limit)
    return name


def _valid_tag(tag: object) -> str:
    if not isinstance(tag, str) or not tag.strip() or not tag.isprintable() or len(tag) > TAG_CHARACTERS_MAX:
        raise _refusal("invalid_tag", "tag", tag, f"1 to {TAG_CHARACTERS_MAX} printable characters, not blank")
    return tag


def _valid_text(field: str, text: object, characters_max: int, *, code: str) -> str:
    if not isinstance(text, str) or not _is_readable(text) or len(text) > characters_max:
        raise _refusal(code, field, text, f"1 to {characters_max} printable characters, not blank")
    return text


def _is_readable(text: str) -> bool:
    return bool(text.strip()) and text.replace("\n", " ").isprintable()


def _refusal(code: str, field: str, value: object, limit: str, advice: str = "") -> Invalid:
    shown = repr(value[:80] if isinstance(value, str) else value)
    shown = shown if len(shown) <= 80 else f"{shown[:79]}…"
    return Invalid(f"The {field} must be {limit}, not {shown}.", code=code, advice=advice, field=field, limit=limit)
