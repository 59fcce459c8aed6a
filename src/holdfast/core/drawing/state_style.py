"""How a state looks, wherever it is shown: an icon and a word always, a hue where there is colour.

Six hues, told apart also by people who see few colours; each keeps its contrast on light and on dark ground.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Look:
    """Icon, word and hue of a state."""

    icon: str
    word: str
    hue: str
    is_dashed: bool = False


LOOKS: Mapping[str, Look] = MappingProxyType(
    {
        "delayed": Look("◷", "delayed", "neutral"),
        "queued": Look("≡", "queued", "neutral"),
        "blocked": Look("⏸", "blocked", "neutral", is_dashed=True),
        "running": Look("▶", "running", "running"),
        "retrying": Look("↻", "retrying", "attention"),
        "completed": Look("✓", "completed", "succeeded"),
        "failed": Look("✕", "failed", "failed"),
        "upstream_failed": Look("✕", "upstream failed", "failed", is_dashed=True),
        "skipped": Look("↷", "skipped", "neutral", is_dashed=True),
        "canceled": Look("⊘", "canceled", "neutral"),
        # Attempts.
        "timed_out": Look("✕", "timed out", "failed"),
        "lost": Look("⚡", "lost", "attention"),
        "released": Look("↷", "released", "neutral"),
        "revived": Look("↻", "revived", "attention"),
        # Workers, queues and runs.
        "active": Look("▶", "active", "running"),
        "draining": Look("◔", "draining", "attention"),
        "gone": Look("⊘", "gone", "neutral"),
        "paused": Look("⏸", "paused", "attention"),
        # Dead letters and campaigns.
        "open": Look("✕", "open", "failed"),
        "retry_requested": Look("◷", "retry requested", "attention"),
        "resolved": Look("✓", "resolved", "succeeded"),
        "ignored": Look("⊘", "ignored", "neutral"),
        "awaiting_approval": Look("◷", "awaiting approval", "neutral"),
        "awaiting_version": Look("◷", "awaiting version", "neutral"),
        "canary": Look("▶", "canary", "running"),
        "ramp": Look("▶", "ramp", "running"),
        "stopped": Look("✕", "stopped", "failed"),
        "aborted": Look("⊘", "aborted", "neutral"),
        # Slots of schedules, deliveries and effects.
        "fired": Look("▶", "fired", "neutral"),
        "waiting": Look("◷", "waiting", "neutral"),
        "missed": Look("✕", "missed", "attention"),
        "pending": Look("▶", "pending", "running"),
        "unknown": Look("?", "unknown", "attention"),
        "done": Look("✓", "done", "succeeded"),
        "refused": Look("✕", "refused", "failed"),
        "allowed": Look("✓", "allowed", "succeeded"),
        "denied": Look("✕", "denied", "failed"),
    }
)
"""How everything that has a state looks, on a terminal and in a drawing."""

HUES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "neutral": ("#4b5763", "#a3acb4"),
        "running": ("#0a6edb", "#9cc5ff"),
        "attention": ("#9c6510", "#f7a42b"),
        "succeeded": ("#037c7b", "#8ff5df"),
        "failed": ("#a11212", "#ee5f5c"),
    }
)
"""Each hue on light ground and on dark; a terminal has its own (`holdfast.cli.ui.words`)."""


def look_of(state: str) -> Look:
    """Give the look of a state's label; an unknown one is neutral and says its own name."""
    return LOOKS.get(state) or Look("·", state.replace("_", " "), "neutral")


def state_line(state: str) -> str:
    """Write icon and word: `✓ completed`."""
    look = look_of(state)
    return f"{look.icon} {look.word}"
