"""Campaigns: re-drive a group of dead letters gradually, and stop if the failures return.

Pure: counts in, the next step out. The campaign first releases a canary and waits for it. After that it keeps as many
dead letters running at once as have succeeded in this leg, up to a bound, so the rate doubles with success. The return
of the same fault stops the campaign at once; other faults stop it when they exceed a share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class CampaignState(StrEnum):
    """The state of a campaign."""

    AWAITING_APPROVAL = "awaiting_approval"
    AWAITING_VERSION = "awaiting_version"
    CANARY = "canary"
    RAMP = "ramp"
    STOPPED = "stopped"
    COMPLETED = "completed"
    ABORTED = "aborted"


TRANSITIONS: Mapping[CampaignState, frozenset[CampaignState]] = MappingProxyType(
    {
        CampaignState.AWAITING_APPROVAL: frozenset(
            {CampaignState.AWAITING_VERSION, CampaignState.CANARY, CampaignState.ABORTED}
        ),
        CampaignState.AWAITING_VERSION: frozenset(
            {CampaignState.CANARY, CampaignState.COMPLETED, CampaignState.ABORTED}
        ),
        CampaignState.CANARY: frozenset(
            {CampaignState.RAMP, CampaignState.STOPPED, CampaignState.COMPLETED, CampaignState.ABORTED}
        ),
        CampaignState.RAMP: frozenset({CampaignState.STOPPED, CampaignState.COMPLETED, CampaignState.ABORTED}),
        CampaignState.STOPPED: frozenset(
            {
                CampaignState.AWAITING_APPROVAL,
                CampaignState.AWAITING_VERSION,
                CampaignState.CANARY,
                CampaignState.ABORTED,
            }
        ),
        CampaignState.COMPLETED: frozenset(),
        CampaignState.ABORTED: frozenset(),
    }
)
MOVING = (CampaignState.AWAITING_VERSION, CampaignState.CANARY, CampaignState.RAMP)
"""States in which a pass over campaigns may advance one."""

CANARY = 5
AT_ONCE = 1_000
AT_ONCE_MAX = 10_000
OTHER_FAILURES_SHARE_MAX = 0.2
"""The share of ended dead letters that may fail in another way before the campaign stops."""
PRIORITY = 9
"""Re-driven tasks run after the other work of their queue. They do not starve, because no priority does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignCounts:
    """The input of `next_step`. Counts are those of the current leg.

    `left` is the number of dead letters that wait to be released, counted no further than may run at once. With
    `is_paused`, none of them can be released; with `is_looking`, the scan for releasable ones has not finished.
    """

    state: CampaignState
    canary: int
    at_once: int
    left: int
    outstanding: int
    released: int
    succeeded: int
    returned: int
    failed: int
    is_gate_open: bool = True
    is_paused: bool = False
    is_looking: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignStep:
    """The next step: the new state, how many dead letters to release, and a note for people."""

    state: CampaignState
    release: int = 0
    note: str = ""


def next_step(counts: CampaignCounts) -> CampaignStep:
    """Decide the next step of a campaign."""
    state = counts.state
    if state not in MOVING:
        return CampaignStep(state=state)
    if state is CampaignState.AWAITING_VERSION:
        if not counts.is_gate_open:
            return CampaignStep(state=state, note="waits for a worker of a newer version")
        state = CampaignState.CANARY
    if (trouble := _trouble(counts)) is not None:
        return CampaignStep(state=CampaignState.STOPPED, note=trouble)
    if counts.is_looking:
        return CampaignStep(state=state, note="searches for dead letters whose queue and run are not paused")
    if counts.left == 0:
        if counts.outstanding == 0:
            return CampaignStep(state=CampaignState.COMPLETED, note="every dead letter was re-driven")
        return CampaignStep(state=state, note=f"waits for the last {counts.outstanding}")
    if counts.is_paused:
        return CampaignStep(state=state, note="waits for its queue or runs, which are paused")
    if state is CampaignState.CANARY:
        return _canary(counts)
    return _ramp(counts)


def how_many_fit(sizes: Iterable[int], room: int, *, is_alone: bool) -> int:
    """Return how many of the next units can be released, in order.

    A run is one unit, however many tasks it has. With `is_alone`, a first unit larger than the room is released by
    itself.
    """
    units = used = 0
    for size in sizes:
        used += size
        if used > room and not (is_alone and units == 0):
            break
        units += 1
    return units


def is_newer(version: str, than: str) -> bool:
    """Return whether a version is newer.

    Numbers compare as numbers, a word suffix makes a version older, none is oldest.
    """
    return _version_key(version) > _version_key(than)


def newest(versions: Iterable[str]) -> str:
    """Return the newest version, or an empty string if there is none."""
    return max(versions, key=_version_key, default="")


def _canary(counts: CampaignCounts) -> CampaignStep:
    missing = min(counts.canary - counts.released, counts.left)
    if missing > 0:
        return CampaignStep(state=CampaignState.CANARY, release=missing, note=f"canary of {counts.canary}")
    if counts.outstanding:
        return CampaignStep(state=CampaignState.CANARY, note=f"waits for {counts.outstanding} of the canary")
    if not counts.succeeded:
        return CampaignStep(state=CampaignState.STOPPED, note="no dead letter of the canary succeeded")
    return _ramp(counts)


def _ramp(counts: CampaignCounts) -> CampaignStep:
    window = min(max(counts.succeeded, counts.canary), counts.at_once)
    room = min(window - counts.outstanding, counts.left)
    return CampaignStep(state=CampaignState.RAMP, release=max(room, 0), note=f"at most {window} at once")


def _trouble(counts: CampaignCounts) -> str | None:
    if counts.returned:
        return (
            f"the same failure came back {counts.returned} times"
            if counts.returned > 1
            else "the same failure came back"
        )
    ended = counts.succeeded + counts.failed
    if counts.failed and counts.failed > OTHER_FAILURES_SHARE_MAX * ended:
        return f"{counts.failed} of {ended} failed in another way"
    return None


_PART = re.compile(r"\d+|[A-Za-z]+")


def _version_key(version: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key: `1.10` is newer than `1.9`, `1.10rc1` older than `1.10`.

    The end of a version sorts between words and numbers.
    """
    parts = [(2, int(part), "") if part.isdigit() else (0, 0, part.lower()) for part in _PART.findall(version)]
    return (*parts, (1, 0, "")) if parts else ()
