"""The keeper by itself, with small programs in the server's place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from holdfast.store.embedded import keeper, locks

BEGIN = "touch begun; while :; do sleep 0.01; done"


@pytest.fixture
def keep(folder, wait_until):
    """Run a keeper on a shell script, leave it when the script has begun, and return when both are gone."""

    def run(script: str) -> None:
        lock = locks.open_file(folder / "server.lock")
        assert locks.try_take(lock, is_shared=False)
        share = locks.take(folder / "users.lock", is_shared=True, deadline=0)
        order = keeper.describe(
            command=["/bin/sh", "-c", script],
            users_lock=folder / "users.lock",
            keeper_lock=folder / "keeper.lock",
            server_lock=lock,
            uid=None,
            gid=None,
        )
        subprocess.run([sys.executable, "-I", keeper.__file__, order], pass_fds=[lock], cwd=folder, check=True)
        os.close(lock)
        wait_until((folder / "begun").exists)
        os.close(share)
        wait_until(lambda: not locks.is_taken(folder / "server.lock"))

    return run


def test_a_server_too_young_to_listen_is_told_again(keep, folder):
    keep("trap 'test -e told && echo twice > heard && exit; touch told' INT; " + BEGIN)
    assert (folder / "heard").read_text() == "twice\n"


def test_a_server_does_not_inherit_deafness(keep, folder):
    keep("trap 'exit' INT; grep SigIgn /proc/self/status > deaf; " + BEGIN)
    ignored = int((folder / "deaf").read_text().split()[1], 16)
    assert not ignored & (1 << signal.SIGINT - 1 | 1 << signal.SIGHUP - 1)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
def test_a_server_whose_keeper_died_before_it_began_does_not_begin(folder):
    not_the_parent = os.getppid()
    begun = subprocess.run(["touch", folder / "begun"], preexec_fn=keeper._dying_with(not_the_parent), check=False)
    assert (begun.returncode, (folder / "begun").exists()) == (1, False)
