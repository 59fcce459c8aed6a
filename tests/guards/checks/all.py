"""Every check by its name.

What the guards in the SQL are for, as behaviour: each check passes on the real statements and fails without a guard. A
check drives the verbs as workers, reapers and callers do. None of them looks at SQL text.
"""

from __future__ import annotations

from tests.guards.checks import asking, campaigning, claiming, keeping, leasing, recovering, running, settling
from tests.guards.checks.stage import CHECKS, Stage

__all__ = ["CHECKS", "FILES", "Stage"]

FILES = (claiming, leasing, settling, asking, running, recovering, campaigning, keeping)
