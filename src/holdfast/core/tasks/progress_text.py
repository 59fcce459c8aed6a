"""Progress of a task as text: `3/10 pages read`.

Workers in any language send progress over HTTP, so it may be any JSON value. Nothing here raises: a value that is not a
number is shown as it was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard


def progress_text(said: object) -> str:
    """Format as `3/10 pages read`. A total of 1 gives a percentage; a missing `done` is left out, not guessed."""
    if not isinstance(said, Mapping):
        return str(said)
    done, total, message = said.get("done"), said.get("total", 1), said.get("message", "")
    parts = [] if done is None else [_share(done, total)]
    return " ".join([*parts, str("" if message is None else message)]).strip()


def _share(done: object, total: object) -> str:
    if _is_number(done) and _is_number(total) and total == 1:
        return f"{100 * done:.0f} %"
    return f"{_shown(done)}/{_shown(total)}"


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: object) -> str:
    return f"{value:g}" if _is_number(value) else str(value)
