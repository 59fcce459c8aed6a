"""Every check by its name.

What the guards in the SQL are for, as behaviour: each check passes on the real statements and fails without a guard. A
check drives the verbs as workers, reapers and callers do. None of them looks at SQL text.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.guards.checks.stage import CHECKS, Stage

__all__ = ["CHECKS", "FILES", "Stage"]

_NO_CHECKS = {"all", "stage"}
FILES = tuple(
    import_module(f"tests.guards.checks.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("*.py"))
    if path.stem not in _NO_CHECKS
)
