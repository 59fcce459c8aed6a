"""Other engines: chosen by name, reported when they cannot take part, never in the way of our own numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import Invalid, Unavailable
from holdfast_bench.peers.field import PEERS, chosen_peers
from holdfast_bench.peers.private_redis import GUARD
from holdfast_bench.peers.run import DRIVERS, PeerRuns, drain_peer
from holdfast_bench.trial import Trial

pytestmark = pytest.mark.xdist_group("bench")


def test_every_peer_has_a_driver() -> None:
    assert {peer.module for peer in PEERS} == {path.stem for path in DRIVERS.glob("*_peer.py")}
    assert len({peer.name for peer in PEERS}) == len(PEERS)


def test_a_peer_is_chosen_by_name() -> None:
    assert [peer.name for peer in chosen_peers(["rq"])] == ["rq"]
    assert chosen_peers([]) == PEERS
    with pytest.raises(Invalid, match="no peer 'sidekiq'"):
        chosen_peers(["sidekiq"])


async def test_without_redis_its_users_are_skipped_and_say_what_to_install(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    runs = PeerRuns(trial, chosen_peers(["rq"]))
    await runs.install()
    await runs.round()

    assert runs.results()["rq"]["drain_per_s"] is None
    assert "apt install redis-server" in runs.results()["rq"]["note"]


async def test_a_driver_that_fails_says_why(trial: Trial) -> None:
    [peer] = chosen_peers(["procrastinate"])
    with pytest.raises(Unavailable, match="No module named 'procrastinate'"):
        await drain_peer(trial, peer, Path(sys.executable).parent)


def test_a_guarded_program_ends_with_the_benchmark(tmp_path: Path) -> None:
    line = tmp_path / "line"
    os.mkfifo(line)
    program = f"import os, pathlib, time; pathlib.Path({str(line)!r}).write_text(str(os.getpid())); time.sleep(600)"
    command = [sys.executable, str(GUARD), str(tmp_path / "log"), sys.executable, "-c", program]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert guard.stdin is not None
    pid = int(line.read_text())
    guard.terminate()
    guard.stdin.close()
    guard.wait(timeout=10)

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
