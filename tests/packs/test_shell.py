"""Commands as actions: what they see, how they fail, and that nothing of them runs on."""

from __future__ import annotations

import asyncio

import pytest

import holdfast as hf
from holdfast.authoring.packs.shell_runtime import CommandFailed, ShellCommand
from holdfast.core.tasks.signals import Killed
from holdfast.errors import TaskFailed

pytestmark = pytest.mark.crash


async def failure_of(client, action, **given):
    with pytest.raises(TaskFailed) as failed:
        await (await client.enqueue(action, **given)).result(30)
    row = await client.engine.database.fetchrow(
        "select code, class, decision, message from holdfast.failure order by ended_at desc limit 1"
    )
    return dict(row), failed.value


@pytest.mark.slow("it runs commands as child processes; test_a_command_sees_only_variables_it_was_given is fast")
async def test_a_command_gets_its_input_as_arguments_variables_and_json(working):
    see = """
        runtime: shell
        entrypoint: [sh, see.sh, "${name}", "--n=${n}"]
        output: json
        parameters: {name: string, n: integer, live: {type: boolean, default: true}}
    """
    script = """
        input=$(cat)
        printf '{"args": ["%s", "%s"], "var": "%s", "stdin": %s, "task": "%s"}' \\
          "$1" "$2" "$HF_INPUT_NAME" "$input" "$HF_TASK_ID"
    """
    async with working({"see": see}, **{"see.sh": script}) as client:
        task = await client.enqueue("mypack.see", name="Ada; rm -rf $(pwd)", n=3)
        seen = await task.result(30)
    assert seen["args"] == ["Ada; rm -rf $(pwd)", "--n=3"]
    assert seen["var"] == "Ada; rm -rf $(pwd)"
    assert seen["stdin"] == {"name": "Ada; rm -rf $(pwd)", "n": 3, "live": True}
    assert seen["task"] == task.task_id


async def test_a_command_sees_only_variables_it_was_given(working, monkeypatch):
    monkeypatch.setenv("HOLDFAST_SECRET", "s3cret")
    monkeypatch.setenv("SHOP_REGION", "eu")
    show = """
        runtime: shell
        entrypoint: env
        env: {GREETING: hello}
        inherit_env: [SHOP_REGION]
    """
    async with working({"show": show}) as client:
        shown = (await (await client.enqueue("mypack.show")).result(30))["stdout"]
    assert "GREETING=hello" in shown and "SHOP_REGION=eu" in shown and "PATH=" in shown
    assert "s3cret" not in shown and "HOLDFAST" not in shown


@pytest.mark.slow("it runs commands as child processes; test_a_command_sees_only_variables_it_was_given is fast")
async def test_text_for_a_shell_is_run_by_one_only_where_asked_for(working):
    asked = 'runtime: shell\nshell: true\nentrypoint: echo $((6 * 7)) "$HF_INPUT_X"\nparameters: {x: string}'
    plain = 'runtime: shell\nentrypoint: [echo, "$((6 * 7))"]'
    async with working({"asked": asked, "plain": plain}) as client:
        by_shell = await (await client.enqueue("mypack.asked", x="$(id)")).result(30)
        alone = await (await client.enqueue("mypack.plain")).result(30)
    assert (by_shell["stdout"], alone["stdout"]) == ("42 $(id)\n", "$((6 * 7))\n")


@pytest.mark.slow("it runs commands as child processes; test_a_command_sees_only_variables_it_was_given is fast")
async def test_an_exit_code_is_a_failure_with_a_class(working, subtests):
    cases = [
        ("echo broken >&2; exit 3", "exit_3", "unclassified"),
        ("exit 75", "exit_75", "transient_error"),
        ("echo 'connect: connection refused' >&2; exit 1", "exit_1", "connection_error"),
        ("kill -9 $$", "lost", "lost"),
    ]
    for script, code, known_as in cases:
        with subtests.test(script=script, code=code, known_as=known_as):
            fail = f'runtime: shell\nshell: true\nmax_losses: 0\nentrypoint: "{script}"'
            async with working({"fail": fail}) as client:
                found, _ = await failure_of(client, "mypack.fail")
            assert (found["code"], found["class"]) == (code, known_as)


@pytest.mark.slow("it runs commands as child processes; test_a_command_sees_only_variables_it_was_given is fast")
async def test_rules_of_the_action_judge_exit_codes(working, clock):
    flaky = """
        runtime: shell
        shell: true
        entrypoint: test "$HF_ATTEMPT" = 2 || exit 9
        max_retries: 1
        retry: {base_backoff_secs: 0}
        rules: [{code: exit_9, retry: true, reason: flaky}]
    """
    async with working({"flaky": flaky}) as client:
        assert await (await client.enqueue("mypack.flaky")).result(30) == {"stdout": ""}


@pytest.mark.slow("it runs commands as child processes; test_a_command_sees_only_variables_it_was_given is fast")
async def test_a_missing_command_is_final(working):
    async with working({"gone": "runtime: shell\nentrypoint: no-such-command\nmax_retries: 5"}) as client:
        found, _ = await failure_of(client, "mypack.gone")
    assert (found["code"], found["decision"]) == ("exit_127", "stop")


FAMILY = 'trap "" TERM; sleep 300 & echo $! >> pids; echo $$ >> pids; wait'


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_a_command_is_stopped_with_everything_it_started(working, tmp_path, eventually, is_running, how):
    limit = "timeout_seconds: 0.5\n" if how == "timeout" else ""
    slow = f"runtime: shell\nshell: true\n{limit}entrypoint: '{FAMILY}'"
    pids = tmp_path / "mypack" / "pids"
    async with working({"slow": slow}) as client:
        task = await client.enqueue("mypack.slow")
        await eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        if how == "cancel":
            await task.cancel()
        assert await task.wait(30) == ("failed" if how == "timeout" else "canceled")
        await eventually(lambda: not any(is_running(int(pid)) for pid in pids.read_text().split()))


async def test_what_a_command_leaves_in_the_background_ends_with_it(working, tmp_path, is_running):
    leaves = "runtime: shell\nshell: true\nentrypoint: 'sleep 300 > /dev/null 2>&1 & echo $! > pid'"
    async with working({"leaves": leaves}) as client:
        await (await client.enqueue("mypack.leaves")).result(30)
        assert not is_running(int((tmp_path / "mypack" / "pid").read_text()))


@pytest.mark.slow("it runs commands as child processes; test_a_command_sees_only_variables_it_was_given is fast")
async def test_output_that_is_not_json_fails_the_task(working):
    async with working({"odd": "runtime: shell\nentrypoint: [echo, hello]\noutput: json"}) as client:
        found, _ = await failure_of(client, "mypack.odd")
    assert (found["class"], "not JSON" in found["message"]) == ("validation", True)


@pytest.mark.slow("it runs commands as child processes; test_a_command_sees_only_variables_it_was_given is fast")
async def test_a_killed_command_is_lost_and_spends_no_retry(working):
    killed = 'runtime: shell\nshell: true\nentrypoint: test "$HF_ATTEMPT" = 2 || kill -9 $$'
    async with working({"killed": killed}) as client:
        assert await (await client.enqueue("mypack.killed")).result(30) == {"stdout": ""}
        row = await client.engine.database.fetchrow("select state, decision from holdfast.failure")
    assert (row["decision"], row["state"]) == ("retry", b"l")


async def test_outside_a_process_of_its_own_a_command_ends_its_own_family_and_no_other(
    tmp_path, is_running, eventually
):
    command = ShellCommand(argv=("sleep 300 > /dev/null 2>&1 & echo $!",), folder=tmp_path, through_shell=True)
    context = hf.Context(task_id="1", attempt=1, tenant="default", action="mypack.x", queue="default")
    beside = await asyncio.create_subprocess_exec("sleep", "300")
    left = int(command(context)["stdout"])
    await eventually(lambda: not is_running(left))
    assert is_running(beside.pid)
    beside.kill()
    await beside.wait()


@pytest.mark.parametrize(
    ("script", "kind", "code"),
    [
        ("kill -9 $$", Killed, "lost"),
        ("sh -c 'kill -9 $$'; exit $?", Killed, "lost"),
        ("kill -15 $$", CommandFailed, "signal_SIGTERM"),
    ],
)
def test_only_a_killed_command_is_lost(tmp_path, script, kind, code):
    context = hf.Context(task_id="1", attempt=1, tenant="default", action="mypack.x", queue="default")
    with pytest.raises(kind) as raised:
        ShellCommand(argv=(script,), folder=tmp_path, through_shell=True)(context)
    assert raised.value.code == code
