"""A folder of YAML becomes actions, and every mistake is named by its file and line."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

import holdfast as hf
from holdfast.authoring.action import Isolation
from holdfast.authoring.packs.document import read_document
from holdfast.authoring.packs.load import find_packs, read_pack
from holdfast.core.limits.breaker import Breaker
from holdfast.core.limits.quota import Quota
from holdfast.core.tasks.policy import PolicyDefaults, RetryPolicy
from holdfast.errors import Invalid

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "packs"
DEFAULTS = PolicyDefaults()


@pytest.fixture
def a_pack(tmp_path):
    """Write a pack: files by name, dedented; `pack.yaml` is there unless given."""

    def write(**files: str) -> Path:
        folder = tmp_path / "mypack"
        for name, text in {"pack.yaml": "name: mypack\n", **files}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text).lstrip("\n"))
        return folder

    return write


def problems(folder: Path) -> list[tuple[str, int, str]]:
    return [(Path(one.file).name, one.line, f"{one.text} {one.advice}".strip()) for one in read_pack(folder).problems]


def test_the_example_of_the_seed_loads_as_it_is_written(a_pack):
    folder = a_pack(
        **{
            "actions/api-call.yaml": """
                # packs/mypack/actions/api-call.yaml
                name: external_api_call
                runtime: python
                entrypoint: actions/api.py
                timeout_seconds: 120 # 2 minutes (overrides global 5 min TTL)
                max_retries: 3 # Retry up to 3 times on failure
                """,
            "actions/api.py": "def run(x: int) -> int:\n    return x\n",
        }
    )
    action = hf.load_pack(folder).actions["mypack.external_api_call"]
    policy = action.policy(DEFAULTS)
    assert (policy.timeout_seconds, policy.max_retries, action(x=3)) == (120.0, 3, 3)


def test_the_example_pack_is_sound():
    pack = read_pack(EXAMPLES / "shop")
    assert pack.problems == []
    assert sorted(pack.app.actions) == ["shop.label", "shop.notify", "shop.price"]
    notify = pack.app.actions["shop.notify"]
    assert notify.breaker == Breaker(attempts_min=10, open_seconds=60)
    assert notify.quota == Quota(share=0.2)
    assert pack.app.actions["shop.label"].isolation is Isolation.PROCESS
    assert pack.app.version == "1.0"


def test_packs_are_found_in_a_folder_of_them():
    assert [folder.name for folder in find_packs(EXAMPLES)] == ["shop"]
    assert find_packs(EXAMPLES / "shop") == [EXAMPLES / "shop"]


ECHO = """
    name: echo
    runtime: shell
    entrypoint: echo
"""


@pytest.mark.parametrize(
    ("pack", "action", "expected"),
    [
        ("name: mypack", "", 0),
        ("name: mypack\ndefaults: {max_retries: 4}", "", 4),
        ("name: mypack\ndefaults: {max_retries: 4}", "max_retries: 6", 6),
        ("name: mypack", "retry: {max_retries: 5}", 5),
        ("name: mypack", "retry: {max_retries: 5}\nmax_retries: 2", 2),
        ("name: mypack", "retry: {max_retries: 5}\nmax_attempts: 2", 1),
        ("name: mypack\ndefaults: {retry: {max_retries: 5}}", "", 5),
        ("name: mypack\ndefaults: {max_retries: 4}", "retry: {max_retries: 5}", 5),
        ("name: mypack\ndefaults: {retry: {max_retries: 5}}", "max_attempts: 3", 2),
        ("name: mypack", "launcher: process", 1),
        ("name: mypack\ndefaults: {launcher: process}", "", 1),
    ],
)
def test_retries_come_from_the_action_before_the_pack_before_the_default_of_yaml(a_pack, pack, action, expected):
    folder = a_pack(**{"pack.yaml": f"{pack}\n", "actions/echo.yaml": f"{dedent(ECHO)}{action}\n"})
    found = hf.load_pack(folder).actions["mypack.echo"]
    assert found.policy(DEFAULTS).max_retries == expected
    # Where workers are launched and nobody else speaks, the settings do.
    is_left_to_settings = found.launcher is not None and expected == 1
    assert found.policy(PolicyDefaults.of(RetryPolicy(), max_retries=9)).max_retries == (
        9 if is_left_to_settings else expected
    )


async def test_policies_are_layered_default_pack_action_node_task(a_pack, engine):
    from holdfast.core.flows.graph import FlowDefinition
    from holdfast.core.flows.nodes import Node
    from holdfast.engine.lifecycle.runs.start import ActionRules, snapshot_of

    folder = a_pack(
        **{
            "pack.yaml": """
                name: mypack
                defaults:
                  timeout_seconds: 50
                  max_retries: 2
                  retry: {base_backoff_secs: 2, max_backoff_secs: 20}
                """,
            "actions/echo.yaml": f"{dedent(ECHO)}timeout_seconds: 40\nretry: {{base_backoff_secs: 3}}\n",
        }
    )
    action = hf.load_pack(folder).actions["mypack.echo"]
    policy = action.policy(PolicyDefaults(usual=RetryPolicy(max_losses=9, max_backoff_secs=99, timeout_seconds=60)))
    layered = (policy.max_losses, policy.max_backoff_secs, policy.max_retries, policy.timeout_seconds)
    assert (*layered, policy.base_backoff_secs) == (9, 20, 2, 40.0, 3)

    rules = {"mypack.echo": ActionRules(queue=action.queue, priority=5, policy=policy)}
    node = Node(name="a", action="mypack.echo", timeout_seconds=30.0)
    flow = FlowDefinition(name="f", version=1, nodes=(node,), edges=())
    snapshot = await snapshot_of(engine.catalog, 1, flow.validated(), rules)
    of_node = engine.catalog.policy(snapshot.policy_ids[0])
    assert (of_node.timeout_seconds, of_node.max_retries, of_node.base_backoff_secs) == (30.0, 2, 3)

    of_task = action.options(timeout="20s", max_retries=7).policy(DEFAULTS)
    assert (of_task.timeout_seconds, of_task.max_retries, of_task.base_backoff_secs) == (20.0, 7, 3)


MISTAKES = {
    "unknown field": ("name: x\nruntime: shell\nentrypoint: ls\nmax_retrys: 3\n", 4, "Did you mean max_retries?"),
    "unknown runtime": ("name: x\nruntime: pyton\n", 2, "Did you mean python?"),
    "no name": ("runtime: shell\nentrypoint: ls\n", 1, "no name"),
    "bad name": ("runtime: shell\nentrypoint: ls\nname: a b\n", 3, "must be 1 to"),
    "not yaml": ("name: [x\nruntime: shell\n", 2, "cannot be read"),
    "tag": (
        "name: x\nruntime: shell\nentrypoint: ls\nparameters:\n  a: {default: !!python/object:os.system x}\n",
        5,
        "uses the tag",
    ),
    "twice": ("name: x\nname: y\nruntime: shell\nentrypoint: ls\n", 2, "appears twice"),
    "list": ("- name: x\n", 1, "must hold a map"),
    "empty": ("", 1, "empty"),
    "number as key": ("name: x\nruntime: shell\nentrypoint: ls\n7: x\n", 4, "There is no field '7'"),
    "wrong type": ("name: x\nruntime: shell\nentrypoint: ls\nmax_retries: many\n", 4, "must be a whole number"),
    "below zero": ("name: x\nruntime: shell\nentrypoint: ls\nmax_retries: -1\n", 4, "from 0 to"),
    "bad retry": ("name: x\nruntime: shell\nentrypoint: ls\nretry:\n  base: 3\n", 1, "has no field base"),
    "bad value in retry": ("name: x\nruntime: shell\nentrypoint: ls\nretry: {max_retries: -1}\n", 4, "from 0 to"),
    "memory of a thread": ("name: x\nentrypoint: code.py\nmemory_bytes_max: 1000000\n", 3, 'isolation="process"'),
    "keyword": ("name: x\nruntime: shell\nentrypoint: ls\nparameters: {class: string}\n", 4, "cannot be the name"),
    "bad rule": ("name: x\nruntime: shell\nentrypoint: ls\nrules: [{when: 3}]\n", 4, "A rule is a map"),
    "bad breaker": ("name: x\nruntime: shell\nentrypoint: ls\nbreaker: {share: 7}\n", 4, "above 0"),
    "no entrypoint": ("name: x\nruntime: python\n", 1, "needs an entrypoint"),
    "no file": ("name: x\nentrypoint: gone.py:run\n", 2, "no file gone.py"),
    "no function": ("name: x\nentrypoint: code.py:gone\n", 2, "no function 'gone'"),
    "broken code": ("name: x\nentrypoint: broken.py\n", 2, "cannot be imported: ZeroDivisionError"),
    "no command": ("name: x\nruntime: shell\nentrypoint: []\n", 3, "needs an entrypoint"),
    "shell text": ("name: x\nruntime: shell\nshell: true\nentrypoint: [ls]\n", 4, "one text"),
    "injection": ("name: x\nruntime: shell\nshell: true\nentrypoint: rm ${what}\n", 4, "HF_INPUT_NAME"),
    "unknown input": ("name: x\nruntime: shell\nentrypoint: [ls, '${dir}']\n", 3, "${dir} is not a parameter"),
    "unknown type": ("name: x\nruntime: shell\nentrypoint: ls\nparameters:\n  a: text\n", 5, "unknown type 'text'"),
    "no url": ("name: x\nruntime: http\n", 1, "needs a url"),
    "file url": ("name: x\nruntime: http\nurl: file:///etc/passwd\n", 3, "http:// or https://"),
    "host input": (
        "name: x\nruntime: http\nparameters: {h: string}\nurl: https://${h}/x\n",
        4,
        "must begin with http:// or https:// and a literal host",
    ),
    "host part": (
        "name: x\nruntime: http\nparameters: {h: string}\nurl: https://a.${h}/x\n",
        4,
        "host of a url cannot come from the input",
    ),
    "password": ("name: x\nruntime: http\nurl: https://me:secret@example.com/\n", 3, "must not hold a password"),
    "method": ("name: x\nruntime: http\nurl: https://example.com\nmethod: FETCH\n", 4, "no method"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_by_its_line(a_pack, name):
    text, line, said = MISTAKES[name]
    folder = a_pack(**{"actions/x.yaml": text, "code.py": "def run(): ...\n", "broken.py": "1 / 0\n"})
    found = problems(folder)
    assert [(file, at) for file, at, _ in found] == [("x.yaml", line)]
    assert said in found[0][2]


def test_all_mistakes_are_found_at_once_and_the_sound_actions_are_usable(a_pack):
    files = {
        "actions/a.yaml": "name: a\ncolour: red\nspeed: 9\n",
        "actions/b.yaml": "name: b\n",
        "actions/c.yaml": ECHO,
    }
    pack = read_pack(a_pack(**files))
    assert [(Path(one.file).name, one.line) for one in sorted(pack.errors)] == [
        ("a.yaml", 1),
        ("a.yaml", 2),
        ("a.yaml", 3),
        ("b.yaml", 1),
    ]
    assert list(pack.app.actions) == ["mypack.echo"]


def test_a_pack_with_mistakes_does_not_load(a_pack):
    with pytest.raises(Invalid, match=r"has 1 mistake:\n  .*x\.yaml:2: There is no runtime") as refused:
        hf.load_pack(a_pack(**{"actions/x.yaml": "name: x\nruntime: cobol\n"}))
    assert refused.value.code == "invalid_pack"


def test_a_document_that_unfolds_without_end_is_refused(a_pack):
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for last, name in zip("abcdef", "bcdefg", strict=True):
        bomb += f"{name}: &{name} [{', '.join([f'*{last}'] * 9)}]\n"
    [(_, line, text)] = problems(a_pack(**{"actions/x.yaml": bomb}))
    assert (line, "anchor" in text) == (1, True)


def test_dates_and_words_like_no_stay_text_as_in_the_files_of_flows(a_pack):
    text = "name: x\nruntime: shell\nentrypoint: ls\nparameters:\n  day: {default: 2026-01-01}\n  sure: {default: no}\n"
    read = read_document(a_pack(**{"actions/x.yaml": text}) / "actions" / "x.yaml")
    assert [one["default"] for one in read.value["parameters"].values()] == ["2026-01-01", "no"]


def test_without_imports_no_code_of_the_pack_runs(a_pack):
    folder = a_pack(**{"actions/x.yaml": "name: x\nentrypoint: broken.py\n", "broken.py": "1 / 0\n"})
    assert read_pack(folder, imports=False).problems == []


def test_two_actions_of_one_name_are_refused(a_pack):
    found = problems(a_pack(**{"actions/a.yaml": ECHO, "actions/b.yaml": ECHO}))
    assert [(file, line) for file, line, _ in found] == [("b.yaml", 1)]


@pytest.mark.parametrize(
    ("given_", "is_taken"),
    [({"order_id": 7}, True), ({"order_id": 7, "country": "FR"}, True), ({}, False), ({"order_id": 7, "x": 1}, False)],
)
def test_declared_parameters_are_checked_before_anything_is_stored(given_, is_taken):
    action = hf.load_pack(EXAMPLES / "shop").actions["shop.label"]
    if is_taken:
        action.signature.check(action.name, [given_])
    else:
        with pytest.raises(Invalid):
            action.signature.check(action.name, [given_])


def test_what_stands_in_retry_counts_as_if_it_stood_outside(a_pack):
    folder = a_pack(
        **{
            "pack.yaml": "name: mypack\ndefaults: {max_losses: 4, timeout_seconds: 50, retry: {jitter_factor: 0}}\n",
            "actions/echo.yaml": f"{dedent(ECHO)}retry: {{max_losses: 1, timeout_seconds: 7}}\n",
        }
    )
    policy = hf.load_pack(folder).actions["mypack.echo"].policy(DEFAULTS)
    assert (policy.max_losses, policy.timeout_seconds, policy.jitter_factor) == (1, 7.0, 0)


def test_a_mistake_in_the_defaults_is_named_and_stops_nothing_else(a_pack):
    folder = a_pack(**{"pack.yaml": "name: mypack\ndefaults: {retry: 5}\n", "actions/echo.yaml": ECHO})
    assert [(file, line) for file, line, _ in problems(folder)] == [("pack.yaml", 2)]
