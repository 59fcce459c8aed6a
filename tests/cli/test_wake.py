"""`holdfast wake` turns hints on and off, and `doctor` says when carriers and hints do not go together."""

from __future__ import annotations

NOWHERE = "redis://:secret@127.0.0.1:1/0"


def finding(ran, name: str):
    return next(one for one in ran.json if one["name"] == name)


def test_hints_are_off_until_somebody_turns_them_on(holdfast):
    assert holdfast("wake", "show").out == "hints\toff\n"
    assert holdfast("wake", "on", "--hints-max", "7", "--reason", "many workers").code == 0
    shown = holdfast("wake", "show", "-o", "json").json
    assert (shown["is_on"], shown["hints_max"], shown["outstanding"]) == (True, 7, 0)
    assert "at most 7 per queue" in holdfast("wake", "show").out
    assert holdfast("wake", "off").out == "hints\toff\n"


def test_the_bound_comes_from_the_settings(holdfast):
    assert holdfast("wake", "on", "-o", "json", HOLDFAST_HINTS_MAX="12").json["hints_max"] == 12


def test_a_doctor_misses_hints_that_a_carrier_waits_for(holdfast):
    environment = {"HOLDFAST_WAKE": "redis", "HOLDFAST_REDIS_URL": NOWHERE}
    ran = holdfast("doctor", "-o", "json", **environment)
    assert "no hints are written" in finding(ran, "wake-ups")["detail"]
    assert finding(ran, "carrier")["level"] == "warning"
    assert "secret" not in ran.out + ran.err
    holdfast("wake", "on")
    assert finding(holdfast("doctor", "-o", "json", **environment), "wake-ups")["level"] == "ok"


def test_a_doctor_finds_nothing_to_say_about_notify(holdfast):
    ran = holdfast("doctor", "-o", "json")
    assert finding(ran, "wake-ups")["detail"] == "over PostgreSQL"
    assert not [one for one in ran.json if one["name"] == "carrier"]


def test_a_carrier_without_an_address_is_refused(bare):
    ran = bare("doctor", HOLDFAST_WAKE="sqs")
    assert "HOLDFAST_SQS_QUEUE_URL" in ran.out


def test_an_unknown_carrier_is_refused(bare):
    assert "postgres or sqs or redis" in bare("doctor", HOLDFAST_WAKE="pigeon").out


def test_a_worker_of_every_queue_cannot_listen_to_one_address_for_each(bare, tmp_path):
    app = tmp_path / "app.py"
    app.write_text("import holdfast as hf\napp = hf.App('shop')\n")
    environment = {"HOLDFAST_WAKE": "sqs", "HOLDFAST_SQS_QUEUE_URL": "http://127.0.0.1:1/{queue}"}
    ran = bare("work", f"{app}:app", **environment)
    assert ran.code == 2 and "--queues" in ran.err
