"""The example of docs/dead-letters.md runs as it stands, and the page names what exists."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.core.dead_letters.dead_letter import TRANSITIONS
from holdfast.settings.settings import Settings
from holdfast.store.statements import statements
from holdfast.testing.idle import run_until_idle

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "dead-letters.md").read_text()
[BLOCK] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


async def test_the_example_runs(engine, clock):
    page: dict = {"__name__": "dead_letters_page"}
    exec(compile(BLOCK, "dead-letters.md", "exec"), page)
    app = page["app"]
    app.configure(Settings(url=engine.database.url))
    async with app.client() as client:
        for order_id in (7, 8):
            await client.enqueue(page["send_receipt"], order_id=order_id)
        await run_until_idle(app, engine, clock=clock)
    assert await page["look_and_run_again"]() == (2, 2)
    await run_until_idle(app, engine, clock=clock)


def test_the_page_shows_every_transition():
    rows = re.findall(r"^\| ([a-z_, ]+|any but resolved) \| ([a-z_, ]+) \|", PAGE, re.MULTILINE)
    shown = set()
    for left, right in rows:
        states = [state for state in TRANSITIONS if state != "resolved"] if left.startswith("any") else left.split(", ")
        shown |= {(str(state), to) for state in states for to in right.split(", ")}
    assert shown == {(state.value, to.value) for state, targets in TRANSITIONS.items() for to in targets}


def test_every_event_is_on_the_page():
    text = "\n".join(
        statement.text for statement in statements().values() if statement.file.startswith("dead_letters/")
    )
    kinds = set(re.findall(r"'((?:dead_letter|campaign)\.\w+|stateful_dead_letter_retry_requeued)'", text))
    assert kinds and all(f"`{kind}`" in PAGE for kind in kinds)
