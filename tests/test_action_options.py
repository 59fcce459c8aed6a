"""What `@app.action` may be told: mistakes are refused where they are written, with the name that was meant."""

from __future__ import annotations

import inspect
import re
from functools import partial
from typing import get_overloads

import pytest

import holdfast as hf
from holdfast.authoring.action_options import OPTIONS
from holdfast.authoring.packs.load import load_pack
from holdfast.core.tasks.failure import failure_of
from holdfast.core.tasks.policy import PolicyDefaults


def work() -> None: ...


@pytest.mark.parametrize(
    ("options", "code", "advice"),
    [
        ({"max_retires": 7}, "invalid_action", "max_retries"),
        ({"que": "mail"}, "invalid_action", "queue"),
        ({"zzz": 1}, "invalid_action", "timeout"),
        ({"max_attempts": "3"}, "invalid_policy", ""),
        ({"max_retries": "3"}, "invalid_policy", ""),
        ({"retry": "often"}, "invalid_policy", "base_backoff_secs"),
        ({"retry": {"jiter_factor": 0.1}}, "invalid_policy", "jitter_factor"),
        ({"rules": "LookupError"}, "invalid_policy", "hf.Rule"),
        ({"retry": {"rules": ["LookupError"]}}, "invalid_policy", "hf.Rule"),
        ({"rules": [{"exception": "LookupError"}]}, "invalid_policy", "hf.Rule"),
        ({"rules": [hf.Rule(exception=7)]}, "invalid_policy", ""),  # type: ignore[arg-type]
        ({"isolation": 3}, "invalid_action", "thread"),
        ({"priority": "1"}, "invalid_priority", ""),
        ({"queue": 5}, "invalid_name", ""),
        ({"timeout": []}, "invalid_duration", ""),
        ({"breaker": "yes"}, "invalid_guard", ""),
        ({"memory_bytes_max": 2**30}, "invalid_action", 'isolation="process"'),
        ({"retry": {"memory_bytes_max": 2**30}, "isolation": "thread"}, "invalid_action", 'isolation="process"'),
    ],
)
def test_a_mistaken_option_is_refused_and_nothing_registered(options, code, advice):
    app = hf.App("strict")
    with pytest.raises(hf.Invalid) as refused:
        app.action(**options)(work)
    assert refused.value.code == code and advice in (refused.value.advice or "")
    assert not app.actions


def test_what_the_reference_says_of_retry_can_be_given():
    names = re.findall(r"`(\w+)`", OPTIONS["retry"])
    app = hf.App("strict")
    app.action(retry={name: name == "enabled" or 0.5 + 2 * (name == "backoff_multiplier") for name in names})(work)
    assert len(names) == 5 and app.actions


def test_rules_may_stand_inside_retry():
    app, rule = hf.App("strict"), hf.Rule(exception="LookupError")
    inside = app.action(name="inside", retry={"rules": [rule]})(work)
    beside = app.action(name="beside", rules=[rule])(work)
    assert {inside.policy(PolicyDefaults())} == {beside.policy(PolicyDefaults())}


@pytest.mark.parametrize("given", ["mail", 7, None])
def test_what_is_no_function_is_refused(given):
    for decorate in (hf.App("strict").action, hf.App("strict").action()):
        with pytest.raises(hf.Invalid, match="takes a function"):
            decorate(given)


def test_a_function_without_a_name_asks_for_one():
    app = hf.App("strict")
    with pytest.raises(hf.Invalid, match="has no `__name__`"):
        app.action(partial(work))
    assert app.action(name="late")(partial(work)).name == "strict.late"


def test_the_options_checked_are_those_a_type_checker_shows():
    with_options = next(
        one for one in get_overloads(hf.App.action) if "function" not in inspect.signature(one).parameters
    )
    assert set(inspect.signature(with_options).parameters) - {"self"} == set(OPTIONS)


def test_options_beside_the_function_count():
    assert hf.App("strict").action(work, queue="mail").queue == "mail"


class OddError(LookupError): ...


@pytest.mark.parametrize("wanted", [LookupError, OddError, "OddError"])
def test_a_rule_takes_a_class_or_its_name(wanted):
    rule = hf.Rule(exception=wanted)
    assert rule.matches(failure_of(OddError())) and not rule.matches(failure_of(ValueError()))
    hf.App("strict").action(rules=[rule])(work)


@pytest.mark.parametrize(
    ("defaults", "said", "retries"),
    [("", "max_attempts: 4", 3), ("max_attempts: 3", "", 2), ("max_retries: 9", "max_attempts: 1", 0)],
)
def test_a_pack_may_say_max_attempts(tmp_path, defaults, said, retries):
    (tmp_path / "actions").mkdir()
    (tmp_path / "pack.yaml").write_text(f"name: shop\n{f'defaults: {{{defaults}}}' if defaults else ''}\n")
    (tmp_path / "actions" / "a.yaml").write_text(f"name: a\nruntime: shell\nentrypoint: 'true'\n{said}\n")
    assert load_pack(tmp_path).actions["shop.a"].overrides["max_retries"] == retries
