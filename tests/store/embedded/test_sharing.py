"""One server per home: who starts it, who attaches, and when it stops."""

from __future__ import annotations

import gc
import os
import subprocess
from pathlib import Path

import pytest

from holdfast.store.embedded.server import start, status


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; test_of_six_that_race_for_a_new_home_one_starts_and_five_attach is fast"
)
def test_a_first_start_makes_a_durable_database_and_a_second_one_finds_it(new_home, query, wait_until, is_stopped):
    first = start(new_home)
    assert (first.how, status(new_home).is_running) == ("started", True)
    assert query(first.url, "select current_database()") == "holdfast"
    for name in ("fsync", "synchronous_commit", "full_page_writes", "data_checksums"):
        assert query(first.url, f"show {name}") == "on", name
    query(first.url, "create table kept as select 7 as value")
    first.close()
    wait_until(lambda: is_stopped(new_home))

    second = start(new_home)
    assert query(second.url, "select value from kept") == 7
    second.close()


def test_a_start_beside_a_running_server_attaches(home, throw_away, user):
    first = user(home).answer()
    second = start(home, settings=throw_away)
    assert (first["how"], second.how, second.url) == ("started", "attached", first["url"])
    assert second.seconds < 0.5  # it takes a hundredth of that on a quiet machine
    second.close()


def test_of_six_that_race_for_a_new_home_one_starts_and_five_attach(new_home, user):
    racers = [user(new_home) for _ in range(6)]
    assert sorted(racer.answer()["how"] for racer in racers) == ["attached"] * 5 + ["started"]


def test_the_server_stops_with_its_last_user(home, throw_away, wait_until, is_stopped):
    first, second = start(home, settings=throw_away), start(home, settings=throw_away)
    first.close()
    first.close()
    assert status(home).is_running
    second.close()
    wait_until(lambda: is_stopped(home))
    assert "database system is shut down" in status(home).log_tail


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; test_of_six_that_race_for_a_new_home_one_starts_and_five_attach is fast"
)
def test_a_start_during_the_shutdown_gets_a_running_server(home, throw_away, query):
    for _ in range(5):
        server = start(home, settings=throw_away)
        assert query(server.url, "select 1") == 1
        server.close()


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; test_of_six_that_race_for_a_new_home_one_starts_and_five_attach is fast"
)
def test_programs_started_by_a_user_do_not_hold_its_share(home, throw_away, wait_until, is_stopped):
    server = start(home, settings=throw_away)
    with subprocess.Popen(["sleep", "60"], close_fds=False) as bystander:
        server.close()
        wait_until(lambda: is_stopped(home))
        bystander.kill()


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; test_of_six_that_race_for_a_new_home_one_starts_and_five_attach is fast"
)
def test_a_forgotten_server_object_keeps_its_share(home, throw_away, query):
    url = start(home, settings=throw_away).url
    gc.collect()
    assert query(url, "select 1") == 1
    for held in Path("/proc/self/fd").iterdir():
        if held.resolve() == home / "users.lock":
            os.close(int(held.name))


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; test_of_six_that_race_for_a_new_home_one_starts_and_five_attach is fast"
)
def test_settings_reach_the_server(home, throw_away, query):
    server = start(home, settings=throw_away | {"work_mem": "7MB"})
    assert query(server.url, "show work_mem") == "7MB"
    assert query(server.url, "show listen_addresses") == ""
    assert status(home).settings["work_mem"] == "7MB"
    server.close()
