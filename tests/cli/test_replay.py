"""`holdfast task replay` as people and scripts use it, the debugger included."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest

from holdfast.codec import json_codec
from holdfast.core.effects.effect import EffectState
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.engine.effects.gate import AnswerEffect, OpenEffect, Sender, answer_effect, open_effect
from holdfast.testing.factories import a_failure, a_task

MAIL = """

@app.action(queue="math")
def mail(ctx: hf.Context) -> str:
    ctx.log("mailing")
    return ctx.effect("smtp.send", print, "sent")


@app.action(queue="math")
def share(ctx: hf.Context) -> str:
    return ctx.effect("smtp.send", print, "sent", key="k")
"""


@pytest.fixture
def app_ref(shop):
    shop.write_text(shop.read_text() + MAIL)
    return f"{shop}:app"


@pytest.fixture
def failed(seed):
    async def fail(harness):
        task = await harness.enqueue(a_task(action="shop.fail", input={"why": "smtp is down"}, max_retries=0))
        lease = await harness.claim_one()
        await harness.settle(lease, Failed(a_failure("smtp is down", type="ConnectionError")))
        return task.task_id

    return seed(fail)


@pytest.fixture
def task_of(seed):
    def enqueue(action, **given):
        async def work(harness):
            return (await harness.enqueue(a_task(action=action, input=given))).task_id

        return seed(work)

    return enqueue


def test_a_failure_is_shown_with_its_comparison(holdfast, failed, app_ref):
    ran = holdfast("task", "replay", failed, "--app", app_ref)
    assert (ran.code, ran.out) == (1, "ConnectionError: smtp is down\n")
    assert '{"why":"smtp is down"}' in ran.err and "in fail" in ran.err
    assert "the replay failed the same way at cli_shop.py:" in ran.err
    done = holdfast("task", "replay", failed, "--app", app_ref, "-o", "json").json
    assert (done["state"], done["input"], done["recorded"]["state"]) == ("failed", {"why": "smtp is down"}, "failed")
    assert done["comparison"]["likeness"] == "other_line"


def test_an_output_is_printed_as_json(holdfast, task_of, app_ref):
    ran = holdfast("task", "replay", task_of("shop.double", x=21), "--app", app_ref)
    assert (ran.code, ran.out) == (0, "42\n")


def test_effects_are_answered_by_option(holdfast, task_of, app_ref):
    task_id = task_of("shop.mail")
    ran = holdfast("task", "replay", task_id, "--app", app_ref)
    assert (ran.code, "--effect smtp.send=JSON" in ran.out + ran.err) == (1, True)
    ran = holdfast("task", "replay", task_id, "--app", app_ref, "--effect", 'smtp.send="m1"')
    assert (ran.code, ran.out) == (0, '"m1"\n')
    assert "mailing" in ran.err


def test_a_receipt_that_another_task_got_is_looked_for(holdfast, seed, task_of, app_ref):
    async def send(harness):
        await harness.enqueue(a_task(action="shop.share", input={}))
        lease, engine = await harness.claim_one(), harness.engine
        digest = hashlib.sha256(json_codec.canonical([("sent",), {}], bytes_max=100, what="arguments")).digest()
        wanted = OpenEffect(name="smtp.send", user_key="k", ordinal=0, digest=digest)
        gate = await open_effect(
            engine.database, engine.catalog, Sender(claimed=lease.claimed, tenant="default"), wanted
        )
        answer = AnswerEffect(key=gate.key, state=EffectState.DONE, receipt=b'"m7"')
        await answer_effect(engine.database, lease.claimed, answer)
        await harness.settle(lease, Completed(b"null"))

    seed(send)
    ran = holdfast("task", "replay", task_of("shop.share"), "--app", app_ref)
    assert (ran.code, ran.out) == (0, '"m7"\n'), ran.err


def test_what_the_code_prints_is_no_data(holdfast, task_of, shop):
    shop.write_text(
        shop.read_text() + '\nprint("loaded")\n\n@app.action\ndef chat() -> int:\n    print("chatting")\n    return 7\n'
    )
    ran = holdfast("task", "replay", task_of("shop.chat"), "--app", f"{shop}:app", "-o", "json")
    assert (ran.code, ran.json["output"]) == (0, 7)
    assert "loaded" in ran.err and "chatting" in ran.err


def test_a_bad_answer_is_a_usage_error(holdfast, task_of, app_ref, subtests):
    for bad in ["smtp.send", "=1", "smtp.send=nonsense"]:
        with subtests.test(bad=bad):
            assert holdfast("task", "replay", task_of("shop.mail"), "--app", app_ref, "--effect", bad).code == 2


def test_what_is_not_there_is_not_found(holdfast, task_of, app_ref):
    assert holdfast("task", "replay", "999", "--app", app_ref).code == 3
    task_id = task_of("shop.double", x=1)
    assert holdfast("task", "replay", task_id, "--app", app_ref, "--attempt", "4").code == 3
    assert holdfast("task", "replay", task_of("shop.unknown"), "--app", app_ref).code == 3
    assert holdfast("task", "replay", task_id).code == 2


def test_the_debugger_opens_where_the_code_failed(program, failed, app_ref):
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "task", "replay", failed, "--app", app_ref, "--debug"],
        env=program.environment(),
        input="p why\nq\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "'smtp is down'" in done.stdout and "raise ConnectionError(why)" in done.stdout


def test_without_a_failure_the_debugger_says_so(holdfast, task_of, app_ref):
    ran = holdfast("task", "replay", task_of("shop.double", x=1), "--app", app_ref, "--debug")
    assert (ran.code, "breakpoint()" in ran.err) == (0, True)


PACK = {
    "pack.yaml": "name: store\n",
    "actions/touch.yaml": "name: touch\nruntime: shell\nentrypoint: [touch, {mark}]\n",
    "actions/add.yaml": "name: add\nruntime: python\nentrypoint: add.py\n",
    "add.py": "def run(a: int = 1) -> int:\n    return a + 1\n",
}


@pytest.fixture
def pack(tmp_path):
    mark = tmp_path / "mark"
    for name, text in PACK.items():
        path = tmp_path / "store" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{mark}", str(mark)))
    return tmp_path / "store", mark


def test_a_pack_is_code_too_and_a_command_of_its_own_runs_only_when_told(holdfast, task_of, pack):
    folder, mark = pack
    added = holdfast("task", "replay", task_of("store.add", a=2), "--pack", str(folder))
    assert (added.out, added.code) == ("3\n", 0), added.err
    task_id = task_of("store.touch")
    refused = holdfast("task", "replay", task_id, "--pack", str(folder))
    assert refused.code != 0 and "--send" in refused.err and not mark.exists()
    assert holdfast("task", "replay", task_id, "--pack", str(folder), "--send").code == 0
    assert mark.exists()


def test_without_code_there_is_nothing_to_replay(holdfast, task_of):
    ran = holdfast("task", "replay", task_of("shop.add"))
    assert ran.code == 2 and "--app" in ran.err and "--pack" in ran.err
