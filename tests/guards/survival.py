"""Whether a check notices that a guard is gone. What the server refuses to run proves nothing: that is an error."""

from __future__ import annotations

import asyncpg
import pytest
from tests.guards.checks.all import CHECKS, Stage

from holdfast.errors import Unavailable

INVALID = (asyncpg.SyntaxOrAccessError, asyncpg.FeatureNotSupportedError)


async def survives(check: str, stage: Stage) -> bool:
    """Whether the check passes all the same."""
    try:
        await CHECKS[check](stage)
    except INVALID:
        raise
    except Unavailable as error:
        # The driver counts arguments by itself: a mutant that lost one never ran.
        if isinstance(error.__cause__, asyncpg.InterfaceError):
            raise
        return False
    except (Exception, pytest.fail.Exception):  # noqa: BLE001 - however it fails, it noticed
        return False
    return True
