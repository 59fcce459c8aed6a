"""How states look on a terminal follows from how they look everywhere."""

from __future__ import annotations

from holdfast.cli.ui.words import TERMINAL_HUES, hue, state_text
from holdfast.core.drawing.state_style import HUES, STYLES


def test_every_hue_has_a_colour_of_the_terminal_and_every_state_an_icon():
    assert set(TERMINAL_HUES) == set(HUES)
    assert [state_text(state) for state in STYLES] == [f"{look.icon} {state}" for state, look in STYLES.items()]
    assert (hue("failed"), hue("queued"), hue("never heard of")) == ("red", "", "")
    assert state_text("never_heard_of", "2/4") == "· never_heard_of 2/4"
