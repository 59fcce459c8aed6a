"""What a launcher's name may mean, and that nobody but the server's own settings decides it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.launchers.conftest import ACTION
from tests.launchers.platform import REFUSE, Fixed, Platform, profile

from holdfast import App
from holdfast.core.limits.quota import Quota
from holdfast.engine.limits.quotas import list_quotas
from holdfast.errors import Invalid, InvalidSettings
from holdfast.launchers.loop import Launching
from holdfast.launchers.process import ProcessLauncher
from holdfast.launchers.profiles import Profiles
from holdfast.settings.settings import Settings

FACTORY = f"{__name__}:make"


def make(profile, options):
    made = Platform()
    made.options = options
    return made


def profiles(launchers=None, **settings):
    base = replace(Settings(), launchers=launchers or {}, **settings)
    return Profiles(base, url="postgresql://here", app_ref="shop:app")


def test_a_built_in_kind_needs_no_profile():
    found = profiles().find("process")
    assert isinstance(found.launcher, ProcessLauncher) and found.slots == 10


def test_a_profile_gives_a_kind_another_name_and_bounds():
    found = profiles({"small": {"kind": "process", "slots": 3, "launch_seconds": 7}}).find("small")
    assert (found.launcher.kind, found.slots, found.launch_seconds) == ("process", 3, 7.0)


def test_a_file_gives_the_profiles(tmp_path):
    path = tmp_path / "holdfast.toml"
    path.write_text('port = 9000\n[launchers.gpu]\nkind = "process"\nenv = { A = "b" }\n')
    settings = Settings.load({}, toml_path=path)
    assert (settings.port, settings.launchers["gpu"]["env"]) == (9000, {"A": "b"})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kind": "process", "comand": []}, "launchers.x.comand"),
        ({"kind": "kubernetes", "url": "http://k"}, "needs image"),
        ({"kind": "process", "slots": 0}, "slots"),
        ({"kind": "process", "slots": True}, "slots"),
        ({"kind": "process", "env": {"HOLDFAST_LAUNCH_TOKEN": "x"}}, "HOLDFAST_LAUNCH_TOKEN"),
        ({"kind": "process", "command": "rm"}, "a list of texts"),
        ({"kind": "nomad"}, "unknown kind"),
        ({"kind": "no_such_module:make"}, "cannot be imported"),
    ],
)
def test_a_mistake_in_a_profile_is_said_at_start(given, says):
    with pytest.raises(InvalidSettings, match=says):
        profiles({"x": given}).check()


def test_no_module_is_imported_because_an_action_says_so():
    assert profiles().find(FACTORY) is None
    assert profiles(env="local").find(FACTORY) is not None
    assert profiles({"own": {"kind": FACTORY, "zone": "a"}}).find("own").launcher.options == {"zone": "a"}
    allowed = replace(Settings().launch, factories=(FACTORY,))
    assert profiles(launch=allowed).find(FACTORY) is not None


@pytest.mark.parametrize("name", ["", "a b", "rm -rf", "x" * 200, 7])
def test_an_action_names_a_launcher_by_a_plain_name(name):
    app = App("shop")
    with pytest.raises(Invalid):
        app.action(launcher=name)(lambda: None)


async def test_a_task_cannot_choose_what_is_launched(launching, queue_up, platform):
    await queue_up(input={"image": "evil", "command": ["rm"], "env": {"HOLDFAST_URL": "evil"}, "overrides": {}})
    await launching.launch_once()
    [order] = platform.asked
    assert set(order.environment) == {
        "HOLDFAST_LAUNCH_TOKEN",
        "HOLDFAST_TASK_ID",
        "HOLDFAST_ATTEMPT",
        "HOLDFAST_TENANT",
    }
    assert "evil" not in str(order)


async def test_a_profile_serves_only_the_tenants_and_actions_it_names(engine, queue_up, platform, why):
    [task] = await queue_up()
    for bounds, key in (({"tenants": ("other",)}, "tenants"), ({"actions": ("shop.other",)}, "actions")):
        assert await Launching(engine, Fixed({"test": profile(platform, **bounds)})).launch_once() == 0
        found = await why(task)
        assert found.code == "not_launched_for" and f"`{key}` of [launchers.test]" in found.headline
    full = Launching(engine, Fixed({"test": profile(platform, slots=1)}))
    await queue_up(action="shop.first", priority=0)
    assert await full.launch_once() == 1
    assert (await why(task)).code == "no_launch_slot", "a profile that names nobody is for all"
    named = {"tenants": ("default",), "actions": ("shop.charge",)}
    assert await Launching(engine, Fixed({"test": profile(platform, **named)})).launch_once() == 1


async def test_a_launcher_that_no_server_has_is_named_by_why(queue_up, launching, why):
    [task] = await queue_up(launcher="elsewhere")
    assert await launching.launch_once() == 0
    found = await why(task)
    assert found.code == "no_launcher" and "elsewhere (no server ever did)" in found.headline


async def test_a_limited_queue_limits_launches(queue_up, launching, harness, why):
    _, second = await queue_up(2)
    await harness.limit(max_running=1)
    assert await launching.launch_once() == 1
    assert (await why(second)).code == "limit_reached"


async def test_an_attempt_that_is_launched_twice_is_one_first_attempt_to_a_quota(
    engine, queue_up, launching, harness, platform, clock
):
    await harness.guard(ACTION, quota=Quota(share=0.5, window_seconds=3600))
    await queue_up()
    platform.faults = [REFUSE]
    await launching.launch_once()
    await clock.advance(seconds=2)
    await harness.reconcile_once()
    await launching.launch_once()
    (view,) = await list_quotas(engine.database, 1)
    assert (view.first_attempts, len(platform.asked)) == (1, 2)
