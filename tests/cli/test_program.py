"""The command as people start it: real processes, signals, terminals and pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import invoke
from tests.waiting import poll

from holdfast.cli.ui.shell import Shell
from holdfast.testing.databases import remove_home, throw_away_home
from holdfast.testing.factories import a_running_task, a_task


def test_help_is_quick(program):
    """Measured in processor time beyond a bare interpreter, so that a busy machine changes nothing."""

    def spent(*arguments: str) -> float:
        before = os.times()
        subprocess.run([sys.executable, *arguments], env=program.environment(), check=True, capture_output=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    bare = min(spent("-c", "pass") for _ in range(3))
    assert min(spent("-m", "holdfast", "--help") for _ in range(3)) - bare < 0.15


@pytest.mark.slow("it starts programs; test_the_server_repairs_and_stops_on_a_signal is fast")
def test_a_worker_runs_what_is_submitted_and_stops_in_good_order(program, holdfast, shop):
    options = ("--slots", "2", "--queues", "math,slow", "--processes", "1")
    work = program.start("work", f"{shop}:app", *options, HOLDFAST_HEARTBEAT_SECONDS="0.3")
    poll(lambda: holdfast("worker", "list", "-o", "json").json)

    (worker,) = holdfast("worker", "list", "-o", "json").json
    assert (worker["slots"], worker["queues"], worker["version"]) == (2, ["math", "slow"], "1.4.2")
    assert holdfast("task", "submit", "shop.double", "--input", '{"x": 4}', "--wait").out == "8\n"
    ran = holdfast("task", "submit", "shop.fail", "--wait", "-o", "json")
    assert (ran.code, ran.json["state"], ran.json["error"]["message"]) == (1, "failed", "no luck")

    task_id = holdfast("task", "submit", "shop.linger").out.strip()
    watch = program.start("task", "watch", task_id)
    poll(lambda: holdfast("task", "show", task_id, "-o", "json").json["state"] == "running")
    assert holdfast("task", "cancel", task_id, "--reason", "enough").out == f"{task_id}\tcanceling\n"
    assert watch.wait(30) == 1
    assert holdfast("task", "why", task_id).out.endswith("after 1 attempt: enough.\n")

    work.send_signal(signal.SIGTERM)
    assert work.wait(30) == 0
    assert holdfast("worker", "list", "-o", "json").json == []


@pytest.mark.slow("it starts programs; test_the_server_repairs_and_stops_on_a_signal is fast")
def test_work_with_a_wrong_app_is_a_usage_error(program):
    ran = program.run("work", "nowhere.py:app")
    assert (ran.code, "There is no file nowhere.py" in ran.err) == (2, True)


def test_work_without_any_queue_name_is_refused_rather_than_taken_for_all(bare, shop):
    ran = bare("work", f"{shop}:app", "--queues", "")
    assert (ran.code, "invalid_name" in ran.err) == (2, True)


def test_the_server_repairs_and_stops_on_a_signal(program, holdfast, seed):
    async def due(harness):
        await a_running_task(harness)
        await harness.engine.database.fetch("update holdfast.live set lease_expires_at = holdfast.instant()")

    seed(due)
    server = program.start("server", "--no-http")
    assert server.stderr.readline().startswith("Maintenance loops on postgresql://")
    poll(lambda: holdfast("queue", "list", "-o", "json").json[0]["queued"] == 1)
    server.send_signal(signal.SIGINT)
    out, err = server.communicate(timeout=30)
    assert (server.returncode, "HTTP" in out + err) == (0, False)


def test_the_server_refuses_a_database_that_does_not_exist(bare, holdfast_url):
    ran = bare("server", "--url", nowhere(holdfast_url))
    assert (ran.code, "database_unreachable" in ran.err) == (1, True)


@pytest.fixture
def home():
    made = throw_away_home()
    yield made
    remove_home(made)


def test_dev_runs_everything_and_leaves_nothing(program, shop, home):
    place = {"HOLDFAST_HOME": str(home), "HOLDFAST_URL": ""}
    dev = program.start("dev", f"{shop}:app", **place)
    said = []
    while not said or said[-1] != "Ctrl-C stops everything.\n":
        said.append(dev.stderr.readline())
        assert said[-1], said
    [url] = [line.split()[1] for line in said if line.startswith("HTTP")]
    poll(lambda: invoke("worker", "list", "-o", "json", HOLDFAST_URL=url, HOLDFAST_ENV="local").json)
    ran = program.run("task", "submit", "shop.double", "--input", '{"x": 21}', "--wait", **place)
    assert (ran.code, ran.out) == (0, "42\n")
    dev.send_signal(signal.SIGINT)
    rest = dev.stderr.read()
    assert dev.wait(40) == 0
    assert any("(embedded)" in line for line in said)
    assert "✓ completed  1  shop.double" in rest
    assert rest.rstrip().endswith("Stopped.")
    assert not processes_naming(str(home))


@pytest.mark.parametrize(
    ("ref", "text"), [("nowhere.py:app", "There is no file nowhere.py"), ("json:app", "json has no attribute 'app'")]
)
def test_dev_with_a_wrong_app_starts_no_database(bare, tmp_path, ref, text):
    ran = bare("dev", ref, HOLDFAST_HOME=str(tmp_path / "home"), HOLDFAST_URL="")
    assert (ran.code, text in ran.err, "Starting" in ran.err) == (2, True, False)
    assert not (tmp_path / "home").exists()


def test_ctrl_c_has_an_exit_code_of_its_own(bare, monkeypatch):
    def interrupt(_shell, work):
        work.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(Shell, "run", interrupt)
    ran = bare("task", "wait", "1")
    assert (ran.code, ran.out, ran.err) == (130, "", "Interrupted.\n")


def test_commands_go_by_the_database_that_the_code_names(bare, holdfast_url, shop, tmp_path):
    code = shop.read_text()
    for name, url in (("ours", holdfast_url), ("lost", nowhere(holdfast_url))):
        (tmp_path / f"{name}_shop.py").write_text(code.replace('version="1.4.2"', f"settings=hf.Settings(url={url!r})"))
    ours, lost = (f"{tmp_path}/{name}_shop.py:app" for name in ("ours", "lost"))
    submit = ("task", "submit", "shop.double", "--input", '{"x": 1}', "--app", ours)
    assert bare(*submit, HOLDFAST_URL="").out.strip() == "1"
    for command in (submit, ("dev", ours)):
        ran = bare(*command)
        assert (ran.code, "settings_differ" in ran.err, ran.out) == (2, True, ""), command
    assert "database_unreachable" in bare("work", lost, HOLDFAST_URL="").err


def nowhere(url: str) -> str:
    """A database that does not exist, on the same server: no process waits for it."""
    return url.replace("/holdfast_test_", "/nobody_made_")


def processes_naming(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if text in line:
            found.append(line)
    return found


@pytest.mark.slow("it starts programs; test_the_server_repairs_and_stops_on_a_signal is fast")
def test_a_terminal_gets_a_table_in_colour_and_a_pipe_gets_plain_lines(program, seed):
    seed(a_running_task)
    shown = program.on_a_terminal("task", "list")
    assert "STATE" in shown and "▶ running" in shown and "\x1b[34m" in shown
    piped = program.run("task", "list").out
    assert "\x1b" not in piped and piped.split("\t")[:3] == ["1", "running", "shop.charge"]


SEVERAL = """
import json, os, sys
from holdfast.cli.main import cli

for words, given in json.loads(sys.argv[1]):
    before = dict(os.environ)
    os.environ.update(given)
    try:
        cli(words, prog_name="holdfast")
    except SystemExit:
        print("~", flush=True)
    os.environ.clear()
    os.environ.update(before)
"""


@pytest.mark.slow("it starts programs; test_the_server_repairs_and_stops_on_a_signal is fast")
def test_json_is_json_and_no_color_is_honoured_on_a_terminal(program, seed):
    seed(a_running_task)
    commands = [
        (["task", "list", "-o", "json"], {}),
        (["task", "list"], {"NO_COLOR": "1"}),
        (["task", "list", "--no-color"], {}),
        (["task", "list"], {}),
    ]
    shown = program.on_a_terminal("-c", SEVERAL, json.dumps(commands), module=None)
    as_json, *plain, coloured, _ = shown.split("~")
    assert json.loads(as_json)[0]["state"] == "running"
    assert len(plain) == 2
    assert all("▶ running" in text and "\x1b[3" not in text for text in plain)
    assert "\x1b[34m" in coloured


def test_a_closed_pipe_ends_quietly(program, seed):
    async def many(harness):
        await harness.enqueue_many(a_task(), [{}] * 2000)

    seed(many)
    done = subprocess.run(
        f"{sys.executable} -m holdfast task list --limit 2000 | head -1",
        shell=True,
        env=program.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("2000\t")
    assert "Traceback" not in done.stderr


def test_wait_times_out_with_its_own_code(program, seed):
    seed(a_running_task)
    assert program.run("task", "wait", "1", "--timeout", "200ms").code == 6


TWO_QUEUES = """
import holdfast as hf

app = hf.App("two")

@app.action(queue="mail")
async def send(n: int) -> int:
    return n + 1

@app.action(queue="money")
async def charge(n: int) -> int:
    return n
"""


def a_worker_over_http(program, holdfast, tmp_path, server_url, *options):
    app = tmp_path / "two_queues.py"
    app.write_text(TWO_QUEUES)
    token = holdfast("token", "create", "mailers", "--role", "worker", "--queues", "mail").out.strip()
    return program.start("work", f"{app}:app", *options, HOLDFAST_URL=server_url, HOLDFAST_TOKEN=token)


@pytest.mark.slow("it starts programs; test_the_server_repairs_and_stops_on_a_signal is fast")
def test_a_token_for_one_queue_serves_an_app_of_two(program, holdfast, tmp_path, server_url):
    a_worker_over_http(program, holdfast, tmp_path, server_url)
    poll(lambda: holdfast("worker", "list", "-o", "json").json)
    assert holdfast("task", "submit", "two.send", "--input", '{"n": 1}', "--wait").out == "2\n"
    assert [row["name"] for row in holdfast("action", "list", "-o", "json").json] == ["two.send"]


def test_a_worker_that_is_refused_says_why_and_not_that_its_app_cannot_be_loaded(
    program, holdfast, tmp_path, server_url
):
    work = a_worker_over_http(program, holdfast, tmp_path, server_url, "--queues", "money")
    _, err = work.communicate(timeout=60)
    assert work.returncode == 2 and "may not serve money" in err and "cannot be loaded" not in err


@pytest.mark.slow("it starts programs; test_the_server_repairs_and_stops_on_a_signal is fast")
def test_a_worker_says_what_it_serves_and_logs_in_json(program, holdfast, shop):
    work = program.start("work", f"{shop}:app", "--queues", "math,slow", HOLDFAST_LOG_FORMAT="json")
    poll(lambda: holdfast("worker", "list", "-o", "json").json)
    holdfast("task", "submit", "shop.fail", "--wait")
    work.send_signal(signal.SIGTERM)
    _, err = work.communicate(timeout=60)
    told = [json.loads(line) for line in err.splitlines()]
    [ready] = [one["message"] for one in told if "is ready" in one["message"]]
    assert "postgresql://" in ready and "queues math, slow, 100 slots, 3 actions (shop.double, shop.fail" in ready
    [failed] = [one for one in told if one["logger"] == "holdfast.attempts"]
    assert (
        failed["level"] == "warning" and "no luck" in failed["message"] and "not retried because" in failed["message"]
    )


@pytest.mark.slow("it starts programs; test_the_server_repairs_and_stops_on_a_signal is fast")
def test_the_log_level_is_a_setting(program, holdfast, shop):
    work = program.start("work", f"{shop}:app", HOLDFAST_LOG_LEVEL="error")
    poll(lambda: holdfast("worker", "list", "-o", "json").json)
    holdfast("task", "submit", "shop.fail", "--wait")
    work.send_signal(signal.SIGTERM)
    assert work.communicate(timeout=60)[1] == ""
