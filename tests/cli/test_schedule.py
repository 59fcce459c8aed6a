"""`holdfast schedule …` against a real database."""

from __future__ import annotations

import json

import pytest
from tests.core.flows import a_flow

from holdfast.core.tasks.retry import RetryPolicy
from holdfast.store.catalog import DEFAULT_TENANT_ID

CREATE = ("schedule", "create", "nightly", "--action", "shop.charge")
CRON = ("--cron", "0 6 * * mon-fri", "--timezone", "Europe/Berlin")


async def an_action(harness):
    await harness.engine.catalog.declare(DEFAULT_TENANT_ID, "shop.charge", "default", RetryPolicy(), "")


@pytest.fixture
def known(holdfast, seed):
    seed(an_action)
    return holdfast


def test_an_empty_list_is_an_empty_array(holdfast):
    ran = holdfast("schedule", "list", "-o", "json")
    assert (ran.code, ran.out) == (0, "[]\n")
    ran = holdfast("schedule", "list")
    assert (ran.code, ran.out, "schedule create" in ran.err) == (0, "", True)


def test_a_schedule_is_made_and_shown_in_its_own_zone_and_here(known):
    made = known(*CREATE, *CRON, "--input", '{"order_id": 7}')
    assert made.code == 0 and made.out.startswith("nightly\t") and made.out.endswith(" 06:00:00 Europe/Berlin\n")
    (row,) = known("schedule", "list", "-o", "json").json
    wanted = {"name": "nightly", "kind": "action", "target": "shop.charge", "overlap": "skip", "missed": "latest"}
    assert wanted.items() <= row.items()
    assert (row["input"], row["timezone"], row["paused"]) == ({"order_id": 7}, "Europe/Berlin", False)
    assert len(row["upcoming"]) == 5 and all("T06:00:00+0" in slot for slot in row["upcoming"])
    assert row["why"].startswith("Next fires in ") and row["why"].endswith("; has not fired yet.")
    table = known("schedule", "list", "-o", "table", "--utc").out.splitlines()
    assert table[0].split() == ["SCHEDULE", "RUNS", "WHEN", "NEXT", "HERE", "LAST", "WHY"]
    assert "06:00:00 Europe/Berlin" in table[1] and "UTC" in table[1]


def test_fire_pause_resume_and_show(known):
    known(*CREATE, "--every", "10m", "--overlap", "queue")
    fired = known("schedule", "fire", "nightly", "--reason", "to see it", "-o", "json").json
    assert fired["state"] == "fired" and fired["task_id"]
    waits = known("schedule", "fire", "nightly")
    assert waits.out == "nightly\twaiting\t\n" and f"task {fired['task_id']}" in waits.err
    assert known("schedule", "pause", "nightly", "--reason", "a migration").out == "nightly\tpaused\n"
    assert known("schedule", "pause", "nightly").out == "nightly\talready paused\n"
    shown = known("schedule", "show", "nightly", "-o", "json").json
    assert (shown["paused"], shown["paused_reason"], shown["waiting"]) == (True, "a migration", 1)
    assert [(slot["state"], slot["cause"]) for slot in shown["slots"]] == [("waiting", "overlap"), ("fired", "by_hand")]
    assert shown["slots"][1]["by"].startswith("cli:") and shown["slots"][1]["reason"] == "to see it"
    assert known("schedule", "resume", "nightly", "-o", "json").json == {"name": "nightly", "paused": False}
    assert known("schedule", "resume", "nightly").out == "nightly\twas not paused\n"
    lines = [line.split("\t") for line in known("schedule", "show", "nightly").out.splitlines()]
    assert [line[2:4] for line in lines if len(line) == 7] == [["waiting", ""], ["fired", fired["task_id"]]]
    text = known("schedule", "show", "nightly", "-o", "table").out
    assert "every 10m 00s UTC" in text and "to see it" in text and "next 5" in text


def test_what_a_skipping_schedule_would_skip_is_a_conflict_by_hand(known):
    known(*CREATE, "--every", "10m")
    assert known("schedule", "fire", "nightly").code == 0
    refused = known("schedule", "fire", "nightly", "-o", "json")
    assert (refused.code, json.loads(refused.err)["error"]["code"]) == (5, "schedule_overlap")


def test_a_flow_can_be_scheduled_once_it_is_known(known, seed):
    flow = ("schedule", "create", "runs", "--flow", "shop.nightly", "--every", "1h")
    assert known(*flow).code == 3

    async def keep(harness):
        await harness.runs.snapshot(a_flow("a>b"))

    seed(keep)
    assert known(*flow, "--input", '{"day": 1}').code == 2
    assert known(*flow, "--max-active", "3").code == 0
    assert known("schedule", "fire", "runs", "-o", "json").json["run_id"]
    assert known("schedule", "show", "runs", "-o", "json").json["max_active"] == 3
    assert "3 nodes of a run" in known("schedule", "show", "runs").out


def test_delete_asks_first(known):
    known(*CREATE, *CRON)
    assert known("schedule", "delete", "nightly").code == 2
    assert known("schedule", "delete", "nightly", "--yes", "-o", "json").json == {"name": "nightly", "deleted": True}
    assert known("schedule", "list", "-o", "json").json == []


def test_a_taken_name_is_a_conflict(known):
    assert known(*CREATE, *CRON).code == 0
    refused = known(*CREATE, *CRON, "-o", "json")
    assert (refused.code, json.loads(refused.err)["error"]["code"]) == (5, "schedule_exists")


def test_an_unknown_schedule_is_not_found_and_a_near_one_is_named(known, subtests):
    for verb in [("show",), ("pause",), ("resume",), ("fire",), ("delete", "--yes")]:
        with subtests.test(verb=verb):
            known(*CREATE, *CRON)
            ran = known("schedule", verb[0], "nihgtly", *verb[1:])
            assert ran.code == 3 and "Did you mean nightly?" in ran.err


def test_bad_schedules_are_usage_errors_and_nothing_is_stored(known, subtests):
    cases = [
        ((), "invalid_schedule"),
        (("--cron", "0 6 * * mon-fri", "--every", "1h"), "invalid_schedule"),
        (("--cron", "99 * * * *"), "invalid_cron"),
        (("--cron", "0 0 30 2 *"), "invalid_cron"),
        (("--every", "0s"), "invalid_interval"),
        (("--every", "2000d"), "invalid_interval"),
        (("--every", "soon"), "invalid_interval"),
        (("--every", "1h", "--timezone", "Mars/Olympus"), "invalid_timezone"),
        (("--every", "1h", "--flow", "shop.nightly"), "invalid_schedule"),
        (("--every", "1h", "--priority", "11"), "invalid_priority"),
        (("--every", "1h", "--max-waiting", "0"), "invalid_schedule"),
        (("--every", "1h", "--max-active", "3"), "invalid_schedule"),
        (("--every", "1h", "--input", "[]"), "invalid_input"),
        (("--every", "1h", "--input", "{"), "payload_not_json"),
    ]
    for options, code in cases:
        with subtests.test(options=options, code=code):
            refused = known(*CREATE, *options, "-o", "json")
            assert (refused.code, json.loads(refused.err)["error"]["code"]) == (2, code)
            assert known("schedule", "list", "-o", "json").json == []


def test_the_shell_says_options_where_an_operation_says_fields(known):
    command = ("schedule", "create", "nightly", "--every", "1m")
    assert "→ Give --action or --flow." in known(*command).err
    assert json.loads(known(*command, "-o", "json").err)["error"]["advice"] == "Give --action or --flow."


def test_an_action_nobody_declared_is_not_found(known):
    ran = known("schedule", "create", "x", "--action", "shop.chrage", "--every", "1h")
    assert ran.code == 3 and "Did you mean shop.charge?" in ran.err
