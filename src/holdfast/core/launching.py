"""Launch rules as values: names of launches, retry delays, and the attempt that a message refers to."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from holdfast.errors import Invalid

LAUNCH_FAILED_CODE = "launch_failed"
LAUNCHES_MAX = 5
"""The number of failed launches of one attempt after which its task fails."""
RELAUNCH_SECONDS_FIRST = 1.0
RELAUNCH_SECONDS_MAX = 60.0
TOKEN_SECONDS = 2 * 60 * 60.0
"""The minimum validity of a one-shot token: as long as its worker may take to attach."""
ERROR_CHARACTERS_MAX = 500

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}")


def valid_launcher(name: Any) -> str:
    """Accept a launcher name: of a profile, a built-in launcher, an entry point, or `module:factory`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Invalid(
            f"launcher={name!r} is not the name of a launcher.",
            code="invalid_action",
            advice="Use process, ecs, kubernetes, ray, the name of a [launchers.…] table, or module:factory.",
            field="launcher",
        )
    return name


def launch_name(epoch: str, task_id: int, attempt: int) -> str:
    """Return the name of a launch on its platform: the same for every try of an attempt, so a repeat is the same
    launch.

    `epoch` is the tag of the epoch in which the id was assigned. The name is also a valid Kubernetes name and ECS
    client token.
    """
    return f"hf-{hashlib.sha256(epoch.encode()).hexdigest()[:8]}-{task_id}-{attempt}"


def token_hash(token: str) -> bytes:
    """Return the stored hash of a one-shot token. Tokens are long and random, so a plain hash cannot be reversed."""
    return hashlib.sha256(token.encode()).digest()


def relaunch_seconds(failures: int, *, jitter: float) -> float:
    """Return the pause after this many failed launches of an attempt: 1, 2, 4, 8 s, each up to a fifth longer."""
    return min(RELAUNCH_SECONDS_FIRST * 2.0 ** max(0, failures - 1), RELAUNCH_SECONDS_MAX) * (1 + 0.2 * jitter)


def attempt_of(value: Any) -> int:
    """Return the attempt that a message refers to: a positive integer as given, anything else means the first."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and value > 0 else 1
