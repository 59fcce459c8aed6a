"""Launchers that other distributions bring: found by their entry point, as pip would have installed it."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from holdfast.errors import InvalidSettings
from holdfast.launchers.loop import Launching
from holdfast.launchers.profiles import Profiles
from holdfast.settings.settings import Settings

MODULE = """
from holdfast.launchers.contract import LaunchState, LaunchStatus


class NomadLauncher:
    kind = "nomad"

    def __init__(self, name, options):
        self.name, self.options, self.asked = name, dict(options), []

    async def launch(self, order):
        self.asked.append(order)
        return f"nomad/{order.name}"

    async def describe(self, handles):
        return {handle: LaunchStatus(state=LaunchState.RUNNING) for handle in handles}

    async def stop(self, name, handle):
        pass
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Lay out a distribution on the path: a module, and a dist-info that names its entry points."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(module, text, entries):
        (tmp_path / f"{module}.py").write_text(text)
        about = tmp_path / f"{module}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text("[holdfast.launchers]\n" + "".join(f"{one}\n" for one in entries))

    yield install
    for module in ("holdfast_nomad", "holdfast_broken"):
        sys.modules.pop(module, None)


def profiles(launchers=None):
    return Profiles(replace(Settings(), launchers=launchers or {}), url="postgresql://here")


def test_an_installed_launcher_is_found_by_its_name(install):
    assert profiles().find("nomad") is None
    install("holdfast_nomad", MODULE, ["nomad = holdfast_nomad:NomadLauncher"])
    assert "holdfast_nomad" not in sys.modules
    found = profiles().find("nomad")
    assert (found.launcher.kind, found.launcher.options, found.slots) == ("nomad", {}, Settings().launch.slots)


def test_a_profile_gives_an_installed_launcher_its_options_and_bounds(install):
    install("holdfast_nomad", MODULE, ["nomad = holdfast_nomad:NomadLauncher"])
    made = profiles({"big": {"kind": "nomad", "slots": 3, "region": "eu"}})
    made.check()
    found = made.find("big")
    assert (found.launcher.name, found.launcher.options, found.slots) == ("big", {"region": "eu"}, 3)


@pytest.mark.parametrize("text", ["raise RuntimeError('no licence')", "NomadLauncher = None\ndel NomadLauncher"])
def test_one_that_cannot_be_imported_is_said_at_start_and_stops_no_other(install, text):
    install("holdfast_broken", text, ["broken = holdfast_broken:NomadLauncher"])
    with pytest.raises(InvalidSettings, match=r"broken \(holdfast_broken:NomadLauncher\) cannot be imported"):
        profiles({"broken": {"kind": "broken"}}).check()
    assert profiles().find("broken") is None


async def test_an_installed_launcher_launches_what_names_it(install, queue_up, engine):
    install("holdfast_nomad", MODULE, ["nomad = holdfast_nomad:NomadLauncher"])
    [task] = await queue_up(launcher="nomad")
    made = profiles()
    assert await Launching(engine, made).launch_once() == 1
    [order] = made.find("nomad").launcher.asked
    handle = await engine.database.fetchval("select handle from holdfast.launch where task_id = $1", int(task))
    assert (order.task_id, handle) == (task, f"nomad/{order.name}")
