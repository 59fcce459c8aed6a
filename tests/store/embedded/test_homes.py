"""Homes of every shape: odd names, copies, closed doors."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from holdfast.errors import InvalidSettings
from holdfast.store.embedded.home import folder_name
from holdfast.store.embedded.server import default_home, start, status

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
as_ordinary_user = pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize("name", ['with a space & more, päth-ключ, a"b and ' + os.fsdecode(b"\xff"), "long-" * 40])
def test_a_home_may_have_any_name(folder, stopped_home, copy_home, throw_away, query, wait_until, is_stopped, name):
    home = folder / name
    copy_home(stopped_home, home)
    server = start(home, settings=throw_away)
    assert query(server.url, "select current_database()") == "holdfast"
    server.close()
    wait_until(lambda: is_stopped(home))


@pytest.fixture
def long_home(folder, stopped_home, copy_home):
    """A home whose socket does not fit into it."""
    copy_home(stopped_home, folder / ("long-" * 40))
    return folder / ("long-" * 40)


def socket_folder(url: str) -> Path:
    return Path(url.partition("host=")[2].partition("&")[0])


@pytest.mark.slow("it starts a PostgreSQL of its own; test_a_copy_of_a_running_home_gets_a_server_of_its_own is fast")
def test_a_temporary_socket_folder_is_private_and_found_again(long_home, throw_away, wait_until, is_stopped):
    urls = []
    for _ in range(2):
        server = start(long_home, settings=throw_away)
        assert stat.S_IMODE(socket_folder(server.url).stat().st_mode) == 0o700
        urls.append(server.url)
        server.close()
        wait_until(lambda: is_stopped(long_home))
    assert urls[0] == urls[1]


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize(
    "meddle",
    [
        pytest.param(lambda folder: folder.chmod(0o755), id="opened"),
        pytest.param(lambda folder: os.chown(folder, 12345, 12345), id="taken", marks=as_root),
    ],
)
def test_a_temporary_socket_folder_that_is_no_longer_private_is_not_used_again(
    long_home, throw_away, wait_until, is_stopped, meddle
):
    folders = []
    for _ in range(2):
        server = start(long_home, settings=throw_away)
        folders.append(socket_folder(server.url))
        server.close()
        wait_until(lambda: is_stopped(long_home))
        meddle(folders[-1])
    assert folders[0] != folders[1]
    folders[0].rmdir()


def test_a_copy_of_a_running_home_gets_a_server_of_its_own(folder, long_home, copy_home, throw_away, query):
    original = start(long_home, settings=throw_away)
    copy_home(long_home, folder / ("copy-" * 40))
    copy = start(folder / ("copy-" * 40), settings=throw_away)
    query(copy.url, "create table only_here ()")
    assert (copy.how, query(original.url, "select to_regclass('only_here')")) == ("started", None)
    for server in (original, copy):
        server.close()


def test_data_and_socket_are_closed_to_others(home, throw_away):
    server = start(home, settings=throw_away)
    for private in (next(home.glob("pg*")), home / "run"):
        assert stat.S_IMODE(private.stat().st_mode) == 0o700, private
    for file in home.glob("*.*"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    server.close()


def test_a_home_is_a_directory_with_a_name_on_one_line(folder):
    (folder / "file").touch()
    for home in (folder / "file", folder / "file" / "below", folder / "two\nlines"):
        with pytest.raises(InvalidSettings) as caught:
            start(home)
        assert caught.value.code == "embedded_home_unusable"


@as_ordinary_user
def test_a_home_has_to_be_writable(folder):
    folder.chmod(0o555)
    for home in (folder, folder / "below"):
        with pytest.raises(InvalidSettings) as caught:
            start(home)
        assert caught.value.code == "embedded_home_unusable"
    folder.chmod(0o755)


def test_the_status_of_a_home_that_never_was_makes_nothing(new_home):
    found = status(new_home)
    assert (found.is_running, found.pid, found.version, found.log_tail) == (False, None, None, "")
    assert not new_home.exists()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOLDFAST_HOME": "/a", "XDG_DATA_HOME": "/b"}, "/a"),
        ({"HOLDFAST_HOME": "~/mine"}, "/home/me/mine"),
        ({"XDG_DATA_HOME": "/b"}, "/b/holdfast/PROJECT"),
        ({"XDG_DATA_HOME": "relative"}, "/home/me/.local/share/holdfast/PROJECT"),
        ({}, "/home/me/.local/share/holdfast/PROJECT"),
    ],
)
def test_the_default_home_follows_the_environment(monkeypatch, tmp_path, environment, expected):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(tmp_path)
    for name in ("HOLDFAST_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert default_home() == Path(expected.replace("PROJECT", folder_name(tmp_path)))


def test_each_project_has_a_database_of_its_own(monkeypatch, tmp_path):
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    homes = {}
    for name, mark in (("shop", "pyproject.toml"), ("mail", ".git"), ("bare", None)):
        (tmp_path / name / "src" / "deep").mkdir(parents=True)
        if mark is not None:
            (tmp_path / name / mark).touch()
        monkeypatch.chdir(tmp_path / name)
        homes[name] = default_home()
        monkeypatch.chdir(tmp_path / name / "src" / "deep")
        assert (default_home() == homes[name]) is (mark is not None)
    assert len(set(homes.values())) == 3 and homes["shop"].name.startswith("shop-")
