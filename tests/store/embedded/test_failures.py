"""What goes wrong at a start is told at once, with a code and what to do."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from holdfast.errors import InvalidSettings, Unavailable
from holdfast.store.embedded import cluster, locks
from holdfast.store.embedded.server import start, status


def test_a_server_that_cannot_start_says_so_at_once_with_its_log(home, throw_away):
    next(home.glob("pg*/global/pg_control")).write_bytes(b"broken")
    (home / "postgres.log").write_text("from an earlier life\n")
    began = time.monotonic()
    with pytest.raises(Unavailable) as caught:
        start(home, settings=throw_away)
    assert (caught.value.code, time.monotonic() - began < 30) == ("embedded_start_failed", True)
    assert "pg_control" in caught.value.fields["log_tail"]
    assert "earlier life" not in str(caught.value)


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; test_a_server_that_cannot_start_says_so_at_once_with_its_log is fast"
)
def test_a_failed_start_gives_its_locks_back(home, throw_away):
    with pytest.raises(Unavailable):
        start(home, settings=throw_away | {"max_connections": "many"})
    server = start(home, settings=throw_away)
    assert server.how == "started"
    server.close()


def test_a_start_waits_no_longer_than_told(folder):
    home_is_busy = locks.take(folder / "server.lock", is_shared=False, deadline=0)
    with pytest.raises(Unavailable) as caught:
        start(folder, start_seconds_max=0.05)
    assert caught.value.code == "embedded_start_timeout"
    os.close(home_is_busy)


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; test_a_server_that_cannot_start_says_so_at_once_with_its_log is fast"
)
def test_a_server_that_is_not_ready_in_time_is_stopped_again(home, throw_away, wait_until, is_stopped):
    with pytest.raises(Unavailable) as caught:
        start(home, settings=throw_away, start_seconds_max=0)
    assert caught.value.code == "embedded_start_timeout"
    wait_until(lambda: is_stopped(home))


def test_data_of_a_version_without_programs_are_refused_and_kept(folder):
    (folder / "pg99").mkdir()
    with pytest.raises(Unavailable, match="need PostgreSQL 99") as caught:
        start(folder)
    assert caught.value.code == "embedded_version_mismatch"
    assert [path.name for path in folder.glob("pg*")] == ["pg99"]


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; test_a_server_that_cannot_start_says_so_at_once_with_its_log is fast"
)
def test_data_without_their_database_never_appear(new_home, throw_away, monkeypatch):
    monkeypatch.setattr(cluster, "DATABASE", "postgres")  # exists already, so that making it fails
    with pytest.raises(Unavailable, match="already exists") as caught:
        start(new_home, settings=throw_away)
    assert caught.value.code == "embedded_data_not_made"
    assert not [path for path in new_home.glob("pg*") if path.suffix != ".draft"]


@pytest.mark.parametrize("name", ["listen_addresses", "PORT", "unix_socket_directories", "data_directory"])
def test_no_setting_moves_the_server_out_of_its_private_place(new_home, name):
    with pytest.raises(InvalidSettings) as caught:
        start(new_home, settings={name: "1"})
    assert caught.value.code == "embedded_setting_refused"


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; test_a_server_that_cannot_start_says_so_at_once_with_its_log is fast"
)
def test_neither_environment_nor_configuration_file_moves_the_server(home, throw_away, query, monkeypatch):
    monkeypatch.setenv("PGPORT", "1")
    with next(home.glob("pg*/postgresql.conf")).open("a") as file:
        file.write("port = 2\nlisten_addresses = '*'\n")
    server = start(home, settings=throw_away)
    monkeypatch.undo()
    assert [query(server.url, f"show {name}") for name in ("port", "listen_addresses")] == ["5432", ""]
    assert b"\0LC_ALL=C\0" in Path(f"/proc/{status(home).pid}/environ").read_bytes()
    server.close()


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; test_a_server_that_cannot_start_says_so_at_once_with_its_log is fast"
)
def test_a_log_that_has_grown_large_is_put_aside(home, throw_away):
    (home / "postgres.log").write_bytes(b"x" * 10_000_001)
    start(home, settings=throw_away).close()
    assert (home / "postgres.log.old").stat().st_size == 10_000_001
    assert (home / "postgres.log").stat().st_size < 100_000
