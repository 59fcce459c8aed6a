"""The same commands by a database URL and by a server's: the same output, byte for byte, but for ids, times and names.

What only looks is asked twice about the same database; what changes something is done to two that are alike.
"""

from __future__ import annotations

import re
from functools import partial

import pytest
from tests.cli.conftest import Ran, invoke
from tests.cli.doors import a_server
from tests.core.flows import a_node, an_order_edge

from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import FlowInput, Node, NodeKind
from holdfast.core.tasks.outcome import Completed, Failed
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.engine.engine import Engine
from holdfast.operations.registry import OPERATIONS
from holdfast.settings.settings import Settings
from holdfast.testing import factories as a
from holdfast.testing.engine_harness import EngineHarness
from holdfast.testing.run_coroutine import run_coroutine
from holdfast.testing.runs import Runs

NIGHTLY = FlowDefinition(
    name="shop.nightly",
    nodes=(a_node("first"), a_node("second")),
    edges=(an_order_edge("first>second"),),
    inputs=(FlowInput(name="day"),),
).validated()
ASKING = FlowDefinition(
    name="shop.asking",
    nodes=(
        Node(name="go", action="approval", kind=NodeKind.WAIT, config={"approval": True, "prompt": "Ship it?"}),
        Node(name="paid", action="paid", kind=NodeKind.WAIT),
    ),
).validated()
FORMS = ("json", "plain", "table")
READS = [
    "task list",
    "task list --state failed,completed --queue {queue}",
    "task list --limit 1",
    "task list --state odd",
    "task show {failed}",
    "task show {completed}",
    "task show nothing",
    "task why {failed}",
    "task why {queued}",
    "task wait {completed}",
    "task wait {failed} {completed}",
    "task wait {queued} --timeout 0.1",
    "task watch {failed}",
    "task logs {completed}",
    "run list",
    "run show {run}",
    "run show 7",
    "run why {run}",
    "run why {run} --node first",
    "run waiting",
    "run waiting --limit 1",
    "run waiting --limit 0",
    "run waiting --after x",
    "run why {asks}",
    "run why {asks} --node go",
    "run graph {run}",
    "run graph {run} --svg -",
    "run watch {over}",
    "flow list",
    "flow show shop.nightly",
    "flow graph shop.nightly",
    "flow show nothing",
    "queue list",
    "worker list",
    "worker show 1",
    "worker show x",
    "action list",
    "action show shop.charge",
    "action show shop.chrage",
    "action breaker shop.charge",
    "schedule list",
    "schedule show nightly",
    "schedule show nihgtly",
    "dataset list",
    "dataset show nothing",
    "dead groups",
    "dead list",
    "dead list --all",
    "dead show {letter}",
    "dead show x",
    "dead export",
    "campaign start --group {group} --dry-run",
    "campaign list",
    "campaign show 9",
    "effect list",
    "effect rules",
    "audit list",
    "audit verify",
    "verify",
    "top --once",
]
CHANGES = [
    ['task submit shop.charge --input {{"n":1}} --tag red --priority 2'],
    ["task submit shop.charge --key {mark} --delay 1h"],
    ["task submit shop.nothing"],
    ["task submit shop.charge --input 7"],
    ["task cancel {queued} --reason twice", "task cancel {queued}"],
    ["task retry {failed}", "task retry {retryable} --reason mended", "task retry {retryable}"],
    ["run start shop.nightly day=1 --tag red", "run start shop.nightly"],
    ["run start --clone {run} day=2"],
    ["run pause {run} --reason lunch", "run resume {run}", "run cancel {run} --reason over", "run cancel {run}"],
    ["run approve {asks} go --reason fine", "run approve {asks} go", "run reject {asks} go --reason late"],
    ["run reject {asks} go --reason dear", "run reject {asks} go", "run approve {asks} paid", "run approve {asks} no"],
    ["run approve 999 go", "run approve x go", "run reject {run} first --reason x"],
    ['run signal paid --data {{"n":1}} --run {asks} --reason phone', "run signal paid --run 999", "run signal paid"],
    ["run signal other --key {mark}", "run signal paid --data {{", "run signal approval:{asks}:go"],
    ["run retry {over} --reason again", "run retry {run} --reason x"],
    ["queue pause {queue} --reason wait", "queue pause {queue}", "queue resume {queue}", "queue resume {queue}"],
    ["queue limit {queue} --running 5 --per-second 2.5", "queue limit {queue} --running none", "queue limit {queue}"],
    ["queue limit {queue} --retries 100/1m --retry-share 20%", "queue limit {queue} --retries none"],
    ["queue limit {queue} --running 0", "queue limit nothing --running 1", "queue limit {queue} --retries x/y"],
    ["queue limit * --retries 9/1m", "queue limit * --retries none"],
    ["schedule create {mark} --action shop.charge --cron 0_6_*_*_* --timezone Europe/Berlin"],
    [
        "schedule create {mark} --action shop.charge --every 10m",
        "schedule create {mark} --action shop.charge --every 1m",
    ],
    ['schedule create {mark} --flow shop.nightly --every 10m --input {{"day":"1"}}', "schedule pause {mark}"],
    ["schedule create {mark} --action shop.charge --every 10m", "schedule fire {mark}", "schedule delete {mark} --yes"],
    ["schedule create {mark}", "schedule pause nothing", "schedule delete nothing --yes"],
    ["effect allow {mark} --action shop.charge --reason may", "effect allow {mark} --action shop.charge"],
    ["effect deny {mark}", "effect deny bad!name", "effect compensate nothing --reason x --yes"],
    ["dead redrive --task {failed} --reason fixed", "dead redrive --task {failed} --reason fixed"],
    ["dead redrive --group nothing --reason fixed --yes", "dead redrive --task {queued} --reason x"],
    ["dead ignore --task {failed} --reason known", "dead ignore --task {failed} --reason known"],
    ["dead ignore --task {failed} --reason known --resolved", "dead ignore --group nothing --reason x --yes"],
    ["campaign start --group {group} --reason fixed --yes --name May --approval", "campaign approve {campaign}"],
    ["campaign abort 9", "campaign resume 9 --reason x", "campaign show x"],
    ["worker drain {worker} --reason maintenance", "worker drain 77", "worker drain x"],
    ["action breaker shop.charge --open --reason away", "action breaker shop.charge --close"],
]


async def a_scene(harness) -> dict[str, str]:
    """One of everything that a command may look at or change; again, another one of each."""
    engine = harness.engine
    scene = await engine.database.fetchval("select count(*) from holdfast.worker")
    worker, queue = f"worker-{scene}", f"mail{scene}"
    letters = "".join(chr(ord("a") + int(digit)) for digit in str(scene))
    await engine.catalog.declare(engine.tenant_id, a.ACTION, "default", RetryPolicy(), "1")
    runs = Runs(harness)
    over = await runs.start(NIGHTLY, {"day": "0"})
    await harness.settle(await harness.claim_task(str(int(over) + 1), worker=worker), Failed(a.a_failure("bad")))
    retryable = await a.a_running_task(harness, worker=worker)
    await harness.settle(retryable, Failed(a.a_failure("validation: no such order")))
    lease = await a.a_running_task(harness, worker=worker, queue=queue, max_retries=0)
    await harness.settle(lease, Failed(a.a_failure("connection reset", type=f"Down_{letters}")))
    completed = await a.a_running_task(harness, worker=worker, queue=queue, input={"order": 7})
    await harness.settle(completed, Completed(b'{"ok": true}'))
    [letter] = await harness.letters(lease.task_id)
    return {
        "over": over,
        "run": await runs.start(NIGHTLY, {"day": "1"}),
        "asks": await runs.start(ASKING),
        "retryable": retryable.task_id,
        "failed": lease.task_id,
        "completed": completed.task_id,
        "queued": (await harness.enqueue(a.a_task(queue=queue))).task_id,
        "letter": letter.dead_letter_id,
        "group": letter.fingerprint,
        "queue": queue,
        "worker": str(await harness.worker_id(worker)),
        "mark": f"mark{scene}",
        "fault": f"Down_{letters}",
        "campaign": str(await engine.database.fetchval("select count(*) + 1 from holdfast.campaign")),
    }


MOMENTARY = {
    re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?( UTC)?"): "<time>",
    re.compile(r'("(?:oldest|beat_age)_seconds": )[\d.e-]+'): r"\1<s>",
    re.compile(r"\t\d+\.\d+\t"): "\t<s>\t",
    re.compile(r"\b\d\d:\d\d:\d\d(\.\d+)?\b"): "<clock>",
    re.compile(r"\b(cli|dev):[\w.-]+"): "<actor>",
    re.compile(r"\b(in )?\d+(\.\d+)? ?(ms|[smhd])( \d+[smh])?( ago)?\b"): "<age>",
    re.compile(r"\b[0-9a-f]{12,64}\b"): "<hash>",
    # What has just been handed in is said in another way.
    re.compile(
        r"Ready: nothing holds it back[^;]*; a worker claims it next"
        r"|Queued <age>; a worker should claim it within moments"
    ): "<ready>",
}
"""What differs between two moments, two callers and two databases."""


def alike(text: str) -> str:
    """The text without what differs between two moments or two callers."""
    for pattern, word in MOMENTARY.items():
        text = pattern.sub(word, text)
    return re.sub(r" {2,}", "  ", text)


def typed(command: str, scene: dict[str, str]) -> list[str]:
    return [word.replace("_", " ") if word.startswith("0_") else word for word in command.format(**scene).split()]


def shown(ran: Ran) -> tuple[int, str, str]:
    return ran.code, alike(ran.out), alike(ran.err)


def by(url: str):
    """Run a command by this door."""
    return partial(invoke, HOLDFAST_URL=url, HOLDFAST_ENV="local")


def scenes_on(url: str, count: int) -> list[dict[str, str]]:
    """So many scenes on one database, none of which a command for another touches."""

    async def work():
        async with Engine(url, Settings()) as engine:
            harness = EngineHarness(engine)
            return [await a_scene(harness) for _ in range(count)]

    return run_coroutine(work())


@pytest.mark.representative(one_in=3)
@pytest.mark.parametrize("form", FORMS)
def test_what_only_looks_shows_the_same_by_either_door(holdfast_url, server_url, seed, form):
    scene, here, there = seed(a_scene), by(holdfast_url), by(server_url)
    here("schedule", "create", "nightly", "--action", a.ACTION, "--cron", "0 6 * * *")
    here("effect", "allow", "smtp.send", "--reason", "may")
    for command in READS if form == "json" else READS[FORMS.index(form) :: 3]:
        ran = [door(*typed(command, scene), "-o", form) for door in (here, there)]
        assert shown(ran[0]) == shown(ran[1]), command
        assert ran[0].out or ran[0].err or "logs" in command


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize("form", ["json", "plain"])
def test_what_changes_something_does_and_says_the_same_by_either_door(holdfast_url, holdfast_databases, form):
    other_url = run_coroutine(holdfast_databases.create())
    try:
        with a_server(other_url) as server_url:
            changes = CHANGES if form == "json" else CHANGES[::4]
            doors = (by(holdfast_url), by(server_url))
            scenes = [scenes_on(url, len(changes)) for url in (holdfast_url, other_url)]
            for commands, *both in zip(changes, *scenes, strict=True):
                said = [
                    [shown(door(*typed(command, scene), "-o", form)) for command in commands]
                    for door, scene in zip(doors, both, strict=True)
                ]
                assert said[0] == said[1], commands
    finally:
        run_coroutine(holdfast_databases.drop(other_url))


LOCAL = {
    "dev": "starts everything on this machine",
    "server": "is what others ask",
    "attach": "runs code on this machine",
    "work": "runs code on this machine",
    "migrate": "changes the schema of a database, which no server of an older version may",
    "bench": "measures a database from where it runs",
    "completion": "prints a script",
    "tenant list": "is about every tenant, and a caller is of one",
    "tenant create": "is about every tenant, and a caller is of one",
    "tenant limit": "is about every tenant, and a caller is of one",
    "pack check": "reads files of this machine",
    "flow check": "reads files of this machine",
}
"""Commands that ask no desk, and why."""


def test_every_command_has_its_operation_or_a_reason_to_have_none(monkeypatch):
    import runpy
    from pathlib import Path

    from holdfast.cli.main import cli

    tools = Path(__file__).resolve().parents[2] / "tools"
    monkeypatch.syspath_prepend(str(tools))
    tool = runpy.run_path(str(tools / "generate_docs.py"))
    commands = {" ".join(path) for path, _ in tool["leaves"](cli)}
    served = {command for operation in OPERATIONS for command in operation.commands}
    assert served <= commands
    assert commands - served == set(LOCAL)
    assert served & set(LOCAL) == set()


NEED_THE_DATABASE = [
    "migrate",
    "bench",
    "server",
    "dev {shop}:app",
    "tenant list",
    "tenant create acme",
    "tenant limit acme --max-running 1",
    "task submit x --app {shop}:app",
]


def test_what_needs_the_database_itself_says_so(server_url, shop, subtests):
    for command in NEED_THE_DATABASE:
        with subtests.test(command=command):
            words = command.format(shop=shop).split()
            ran = invoke(*words, HOLDFAST_URL=server_url, HOLDFAST_ENV="local")
            assert (ran.code, "database_url_needed" in ran.err, "postgresql://" in ran.err) == (2, True, True), ran.err


def test_a_server_that_is_not_there_is_said_so():
    ran = invoke("task", "list", HOLDFAST_URL="http://127.0.0.1:1", HOLDFAST_ENV="local")
    assert (ran.code, "server_unavailable" in ran.err) == (1, True)


@pytest.mark.parametrize("command", ["task list", "work {shop}:app"])
def test_a_token_is_not_sent_in_the_clear(command, shop):
    ran = invoke(*command.format(shop=shop).split(), HOLDFAST_URL="http://holdfast.example", HOLDFAST_TOKEN="hf_secret")
    assert (ran.code, "insecure_server" in ran.err, "hf_secret" in ran.err) == (2, True, False)


def test_without_a_name_a_server_lets_nobody_in(server_url):
    ran = invoke("task", "list", HOLDFAST_URL=server_url)
    assert (ran.code, "unauthorized" in ran.err) == (4, True)


def test_the_doctor_examines_a_server(holdfast_url, server_url):
    ran = by(server_url)("doctor", "-o", "json")
    assert ran.code == by(holdfast_url)("doctor").code
    assert {"python", "settings", "server", "schema"} <= {finding["name"] for finding in ran.json}
