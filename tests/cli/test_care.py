"""`migrate`, `doctor`, `verify`, `top`, `completion`, and what all commands have in common."""

from __future__ import annotations

import json

import asyncpg
import pytest

from holdfast.cli.main import HOMES, cli
from holdfast.testing.factories import a_running_task, a_task
from holdfast.testing.run_coroutine import run_coroutine


def leaves(command=cli, path=()):
    """Every command of the tree with its path."""
    import click

    with click.Context(command, info_name="holdfast") as context:
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if isinstance(found, click.Group):
                yield from leaves(found, (*path, name))
            else:
                yield (*path, name), found


async def execute(url: str, script: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(script)
    finally:
        await connection.close()


def test_every_command_takes_the_common_options_and_explains_itself():
    for path, command in leaves():
        names = {name for param in command.params for name in param.opts}
        assert {"--url", "-o"} <= names, path
        assert (command.help or "").strip(), path
        for param in command.params:
            assert param.param_type_name == "argument" or param.help, (path, param.name)


def test_the_summaries_of_the_root_are_those_of_the_commands():
    for section in HOMES.values():
        for name, (_, summary) in section.items():
            assert cli.get_command(None, name) is not None
            assert summary.endswith(".")


def test_every_command_has_a_help_page(bare):
    for path, _ in leaves():
        ran = bare(*path, "--help")
        assert (ran.code, ran.out.startswith(f"Usage: holdfast {' '.join(path)}")) == (0, True)


def test_the_root_lists_all_commands(bare):
    out = bare("--help").out
    assert all(name in out for section in HOMES.values() for name in section)
    assert bare("--version").out.startswith("holdfast 0.")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("taks", "list"), "Did you mean task?"),
        (("task", "explode"), "No such command 'explode'"),
        (("task", "list", "--nonsense"), "No such option"),
        (("task", "show"), "Missing argument"),
        (("task", "list", "-o", "yaml"), "is not one of"),
    ],
)
def test_a_usage_error_is_code_2_on_stderr(bare, arguments, text):
    ran = bare(*arguments)
    assert (ran.code, ran.out, text in ran.err) == (2, "", True)


def test_no_database_is_configured(bare):
    ran = bare("task", "list", HOLDFAST_URL=None, HOLDFAST_ENV="production")
    assert (ran.code, "database_not_configured" in ran.err) == (2, True)


def test_an_unknown_setting_is_named(bare):
    ran = bare("task", "list", HOLDFAST_LEASE_SECOND="5")
    assert (ran.code, "Did you mean HOLDFAST_LEASE_SECONDS?" in ran.err) == (2, True)


def test_a_database_that_is_away_fails_without_its_password(bare):
    ran = bare("task", "list", "--url", "postgresql://u:secret@127.0.0.1:1/x")
    assert (ran.code, "database_unreachable" in ran.err, "secret" in ran.err) == (1, True, False)


def test_the_url_option_counts_more_than_the_environment(holdfast, holdfast_url):
    assert holdfast("task", "list", "--url", holdfast_url, HOLDFAST_URL="postgresql://127.0.0.1:1/x").code == 0
    assert holdfast("--url", holdfast_url, "task", "list", HOLDFAST_URL="postgresql://127.0.0.1:1/x").code == 0


def test_the_output_option_may_stand_anywhere(holdfast):
    assert holdfast("-o", "json", "task", "list").out == "[]\n"
    assert holdfast("-o", "plain", "task", "list", "-o", "json").out == "[]\n"


def test_migrate_is_repeatable_and_says_what_it_did(holdfast, holdfast_url):
    assert holdfast("migrate", "-o", "json").json["applied"] == []
    run_coroutine(execute(holdfast_url, "drop schema holdfast cascade"))
    ran = holdfast("task", "list")
    assert (ran.code, "Run `holdfast migrate`" in ran.err) == (1, True)
    assert holdfast("migrate").out.startswith("0001\tschema\n")
    assert holdfast("task", "list").code == 0


def test_verify_has_the_shape_of_the_contract(holdfast):
    ran = holdfast("verify", "-o", "json")
    assert (ran.code, ran.json["violations"]) == (0, [])
    assert ran.json["checked"] > 10
    assert "all hold" in holdfast("verify").err


@pytest.mark.breaks_invariants
def test_verify_exits_1_on_a_violation(holdfast, holdfast_url, seed):
    seed(lambda harness: harness.enqueue(a_task()))
    run_coroutine(execute(holdfast_url, "delete from holdfast.body"))
    ran = holdfast("verify", "-o", "json")
    assert ran.code == 1
    assert ran.json["violations"][0]["evidence"]
    assert "broken" in holdfast("verify").err


def test_doctor_has_a_fix_for_each_finding(holdfast):
    findings = {one["name"]: one for one in holdfast("doctor", "-o", "json").json}
    assert {"python", "database", "version", "durability", "schema", "clock", "rights", "workers"} <= findings.keys()
    assert {"oldest queued", "xmin age", "notify queue", "bloat", "maintenance loops"} <= findings.keys()
    for one in findings.values():
        assert (one["level"] == "ok") == (one["fix"] == ""), one
    assert findings["workers"]["fix"] == "Start one: holdfast work APP"
    assert "→ Start one" in holdfast("doctor", "-o", "table").out


def test_doctor_fails_on_what_is_broken(holdfast, seed, holdfast_url):
    async def overdue(harness):
        await a_running_task(harness)

    seed(overdue)
    run_coroutine(
        execute(holdfast_url, "update holdfast.live set lease_expires_at = lease_expires_at - interval '1 hour'")
    )
    ran = holdfast("doctor", "-o", "json")
    findings = {one["name"]: one for one in ran.json}
    assert (ran.code, findings["maintenance loops"]["level"]) == (1, "failed")


@pytest.mark.breaks_invariants
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return statement_timestamp() + interval '2 hours'", "2h 00m ahead of the database's"),
        ("return statement_timestamp() - interval '1 minute'", "1m 00s behind the database's"),
        ("as 'select statement_timestamp()'", "with it for now"),
    ],
)
def test_doctor_warns_of_a_clock_that_was_replaced_and_its_fix_puts_it_back(holdfast, holdfast_url, body, said):
    made = "create or replace function holdfast.instant() returns timestamptz language sql stable parallel safe"
    assert engines_clock(holdfast)["level"] == "ok"
    run_coroutine(execute(holdfast_url, f"{made} {body}"))
    found = engines_clock(holdfast)
    assert (found["level"], said in found["detail"]) == ("warning", True), found
    run_coroutine(execute(holdfast_url, found["fix"].partition(": ")[2]))
    assert engines_clock(holdfast)["level"] == "ok"
    assert holdfast("verify").code == 0


def engines_clock(holdfast):
    return next(one for one in holdfast("doctor", "-o", "json").json if one["name"] == "engine's clock")


def test_doctor_reports_a_schema_that_is_missing_and_a_server_that_is_away(holdfast, holdfast_url):
    ran = holdfast("doctor", "--url", "postgresql://127.0.0.1:1/x", "-o", "json")
    assert (ran.code, ran.json[-1]["name"], ran.json[-1]["level"]) == (1, "database", "failed")
    run_coroutine(execute(holdfast_url, "drop schema holdfast cascade"))
    findings = {one["name"]: one for one in holdfast("doctor", "-o", "json").json}
    assert (findings["schema"]["level"], findings["schema"]["fix"]) == ("failed", "Run `holdfast migrate`.")
    holdfast("migrate")


def test_top_without_a_terminal_is_one_look(holdfast, seed):
    seed(a_running_task)
    look = holdfast("top", "-o", "json").json
    assert (look["queues"][0]["running"], look["workers"][0]["name"]) == (1, "first")
    assert holdfast("top").out.split("\t")[:3] == ["default", "0", "1"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(bare, shell):
    ran = bare("completion", shell)
    assert (ran.code, "_HOLDFAST_COMPLETE" in ran.out) == (0, True)


def test_queues_and_tasks_complete(holdfast, seed):
    seed(lambda harness: harness.enqueue(a_task(queue="mail")))
    words = {"_HOLDFAST_COMPLETE": "bash_complete", "COMP_CWORD": "3"}
    assert "mail" in holdfast(COMP_WORDS="holdfast queue pause ", **words).out
    assert "1" in holdfast(COMP_WORDS="holdfast task why ", **words).out
    assert (
        holdfast(COMP_WORDS="holdfast task why ", HOLDFAST_URL="postgresql://127.0.0.1:1/x", **words).out.strip() == ""
    )


def test_an_error_of_the_server_is_told_in_one_line(holdfast, holdfast_url):
    run_coroutine(execute(holdfast_url, "alter table holdfast.queue rename to kueue"))
    ran = holdfast("queue", "list", "-o", "json")
    assert (ran.code, json.loads(ran.err)["error"]["code"]) == (1, "database_error")
    run_coroutine(execute(holdfast_url, "alter table holdfast.kueue rename to queue"))
