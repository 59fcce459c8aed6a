"""Every list on terminals of several widths: ids, states and queues are whole, and the note gives way."""

from __future__ import annotations

import re

import pytest
from tests.core.flows import a_flow
from tests.flow.steps import finish

from holdfast.cli.ui.table import Column, fitted
from holdfast.core.tasks.outcome import Failed
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.testing import factories as a

LONG = "validation: " + "the customer's address has no house number and the parcel service refuses it " * 3
ACTION = "warehouse_of_the_north.reserve_stock_for_orders"
QUEUE = "parcels-of-the-north"

LISTS = {
    "task list": ("task_id", "state", "queue"),
    "run list": ("run_id", "state"),
    "dead list": ("dead_letter_id", "task_id", "state", "queue"),
    "dead groups": ("fingerprint",),
    "campaign list": ("campaign_id", "state"),
    "worker list": ("worker_id", "state"),
    "schedule list": ("name",),
    "effect list": ("task_id", "state"),
    "effect rules": ("effect",),
    "queue list": ("name",),
    "action list": ("name", "queue"),
    "flow list": ("name",),
    "token list": ("token_id", "role"),
    "member list": ("member_id", "role"),
    "webhook list": ("name", "state"),
    "audit list": ("seq", "verb"),
    "tenant list": ("name",),
}
"""Each list with the fields that must be whole at any width."""

SCRIPT = """
import sys
from holdfast.cli.main import cli
for words in sys.argv[1:]:
    print("LIST", words)
    try:
        cli(words.split(), prog_name="holdfast")
    except SystemExit as end:
        assert not end.code, words
"""


async def much_went_wrong(harness):
    """Failed tasks and a failed run with long errors and long names."""
    engine = harness.engine
    await engine.catalog.declare(DEFAULT_TENANT_ID, ACTION, QUEUE, RetryPolicy(), "1.4.2+build.20261117")
    for _ in range(2):
        lease = await a.a_running_task(harness, action=ACTION, queue=QUEUE)
        await harness.settle(lease, Failed(a.a_failure(LONG, type="warehouse.AddressRefused")))
    await a.a_retrying_task(harness, action=ACTION, queue=QUEUE)
    await harness.runs.start(a_flow("a>b"))
    await finish(harness, fail=[0])
    await harness.pause(QUEUE, reason=LONG)


@pytest.fixture
def full(holdfast, seed):
    """A database in which every list has rows."""
    seed(much_went_wrong)
    [group, *_] = holdfast("dead", "groups", "-o", "json").json
    done = [
        holdfast("campaign", "start", "--group", group["fingerprint"], "--reason", LONG, "--yes"),
        holdfast("schedule", "create", "nightly", "--action", ACTION, "--cron", "0 6 * * mon-fri"),
        holdfast("schedule", "pause", "nightly", "--reason", LONG),
        holdfast("effect", "deny", "smtp.send", "--reason", LONG),
        holdfast("token", "create", "a-name-of-a-token-that-is-rather-long", "--role", "worker", "--queues", QUEUE),
        holdfast(
            "member", "add", "--issuer", "https://accounts.example.com", "--subject", "1" * 21, "--role", "viewer"
        ),
        holdfast(
            *("webhook", "add", "orders", "http://127.0.0.1:9/in/" + "x" * 60, "--event", "task.failed"),
            HOLDFAST_EGRESS_ALLOW="127.0.0.0/8",
            HOLDFAST_EGRESS_PORTS="*",
        ),
    ]
    assert [one.code for one in done] == [0] * len(done), [one.err for one in done if one.code]
    return holdfast


@pytest.mark.representative(one_in=3)
@pytest.mark.parametrize("columns", [80, 120, 200])
def test_ids_states_and_queues_are_whole_at_every_width(full, program, columns):
    shown = program.on_a_terminal("-c", SCRIPT, *LISTS, module=None, COLUMNS=str(columns), HOLDFAST_ENV="local")
    parts = re.split(r"^LIST (.*)$", _bare(shown), flags=re.MULTILINE)
    tables = dict(zip((name.strip() for name in parts[1::2]), parts[2::2], strict=True))
    for name, fields in LISTS.items():
        rows = full(*name.split(), "-o", "json").json
        assert rows or name == "effect list", f"{name} shows nothing"
        assert all(field in row for row in rows for field in fields), (name, rows[0])
        wanted = {str(row[field]) for row in rows for field in fields}
        missing = {word for word in wanted if word not in tables[name]}
        assert not missing, f"{name} at {columns} columns:\n{tables[name]}"
        if rows:
            too_wide = [line for line in tables[name].splitlines() if len(line.rstrip()) > columns]
            assert not [line for line in too_wide if not line.startswith(("Run one again", "More"))], tables[name]


def _bare(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).replace("\r\n", "\n")


def _columns() -> list[Column[str]]:
    def column(**how: bool) -> Column[str]:
        return Column(title="X", text=str, **how)

    return [column(), column(shrinks=True), column(optional=True), column(stretch=True)]


@pytest.mark.parametrize(
    ("room", "widths"),
    [
        (200, {0: 10, 1: 40, 2: 8, 3: 100}),
        (104, {0: 10, 1: 40, 2: 8, 3: 40}),
        (80, {0: 10, 1: 32, 2: 8, 3: 24}),
        (50, {0: 10, 1: 16, 2: 8, 3: 10}),
        (42, {0: 10, 1: 8, 2: 8, 3: 10}),
        (40, {0: 10, 1: 16, 3: 10}),
        (5, {0: 10, 1: 8, 3: 10}),
    ],
)
def test_the_note_gives_way_first_and_an_id_never(room, widths):
    assert {column.index: column.width for column in fitted(_columns(), [10, 40, 8, 100], room)} == widths
