"""What a run did not try because a program is not on this machine, and what would bring it: said at the end of the run.

A green run that tried less than it could must not look like one that tried everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

ABSENT = "is not installed: "
"""How a test says that it needs a program; what follows is what to install."""


def not_tried(reasons: Iterable[str]) -> Iterator[str]:
    """One line for each program that is absent: how many tests wait for it, and how to get it."""
    counted = Counter(reason.removeprefix("Skipped: ") for reason in reasons if ABSENT in reason)
    for reason, number in sorted(counted.items()):
        yield f"{number} {'test' if number == 1 else 'tests'}: {reason}"
