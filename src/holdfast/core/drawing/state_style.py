"""Display style of states: always an icon and a word, and a hue where colour is available.

The hues are distinguishable with colour vision deficiency and keep their contrast on light and dark backgrounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class StateStyle:
    """Icon, word and hue of a state."""

    icon: str
    word: str
    hue: str
    is_dashed: bool = False


STYLES: Mapping[str, StateStyle] = MappingProxyType(
    {
        "delayed": StateStyle("◷", "delayed", "neutral"),
        "queued": StateStyle("≡", "queued", "neutral"),
        "blocked": StateStyle("⏸", "blocked", "neutral", is_dashed=True),
        "running": StateStyle("▶", "running", "running"),
        "retrying": StateStyle("↻", "retrying", "attention"),
        "completed": StateStyle("✓", "completed", "succeeded"),
        "failed": StateStyle("✕", "failed", "failed"),
        "upstream_failed": StateStyle("✕", "upstream failed", "failed", is_dashed=True),
        "skipped": StateStyle("↷", "skipped", "neutral", is_dashed=True),
        "canceled": StateStyle("⊘", "canceled", "neutral"),
        # Attempts.
        "timed_out": StateStyle("✕", "timed out", "failed"),
        "lost": StateStyle("⚡", "lost", "attention"),
        "released": StateStyle("↷", "released", "neutral"),
        "revived": StateStyle("↻", "revived", "attention"),
        # Workers, queues and runs.
        "active": StateStyle("▶", "active", "running"),
        "draining": StateStyle("◔", "draining", "attention"),
        "gone": StateStyle("⊘", "gone", "neutral"),
        "paused": StateStyle("⏸", "paused", "attention"),
        # Dead letters and campaigns.
        "open": StateStyle("✕", "open", "failed"),
        "retry_requested": StateStyle("◷", "retry requested", "attention"),
        "resolved": StateStyle("✓", "resolved", "succeeded"),
        "ignored": StateStyle("⊘", "ignored", "neutral"),
        "awaiting_approval": StateStyle("◷", "awaiting approval", "neutral"),
        "awaiting_version": StateStyle("◷", "awaiting version", "neutral"),
        "canary": StateStyle("▶", "canary", "running"),
        "ramp": StateStyle("▶", "ramp", "running"),
        "stopped": StateStyle("✕", "stopped", "failed"),
        "aborted": StateStyle("⊘", "aborted", "neutral"),
        # Slots of schedules, deliveries and effects.
        "fired": StateStyle("▶", "fired", "neutral"),
        "waiting": StateStyle("◷", "waiting", "neutral"),
        "missed": StateStyle("✕", "missed", "attention"),
        "pending": StateStyle("▶", "pending", "running"),
        "unknown": StateStyle("?", "unknown", "attention"),
        "done": StateStyle("✓", "done", "succeeded"),
        "refused": StateStyle("✕", "refused", "failed"),
        "allowed": StateStyle("✓", "allowed", "succeeded"),
        "denied": StateStyle("✕", "denied", "failed"),
    }
)
"""The style of every state, on a terminal and in a drawing."""

HUES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "neutral": ("#4b5763", "#a3acb4"),
        "running": ("#0a6edb", "#9cc5ff"),
        "attention": ("#9c6510", "#f7a42b"),
        "succeeded": ("#037c7b", "#8ff5df"),
        "failed": ("#a11212", "#ee5f5c"),
    }
)
"""Each hue on a light and on a dark background; terminals have their own colours (`holdfast.cli.ui.words`)."""


def style_of(state: str) -> StateStyle:
    """Return the style of a state; an unknown state is neutral and shows its own name."""
    return STYLES.get(state) or StateStyle("·", state.replace("_", " "), "neutral")


def state_line(state: str) -> str:
    """Format icon and word: `✓ completed`."""
    style = style_of(state)
    return f"{style.icon} {style.word}"
