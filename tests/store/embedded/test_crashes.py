"""Any process may be killed at any time: nothing stays behind, nothing committed is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import asyncpg
import pytest

from holdfast.errors import Unavailable
from holdfast.store.embedded import account, binaries, cluster, locks, postmaster
from holdfast.store.embedded.server import start, status

pytestmark = pytest.mark.crash
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")


def test_the_server_outlives_its_killed_starter_and_stops_cleanly_after_the_last_user(
    home, user, query, wait_until, is_stopped
):
    starter, other = user(home), user(home)
    urls = {starter.answer()["url"], other.answer()["url"]}
    starter.kill()
    assert query(urls.pop(), "select 1") == 1
    other.kill()
    wait_until(lambda: is_stopped(home))
    assert status(home).log_tail.endswith("database system is shut down")


@on_linux
def test_a_killed_keeper_takes_the_server_with_it_and_the_next_start_finds_the_data(
    home, throw_away, user, query, processes, kill, wait_until, is_stopped
):
    query(user(home).answer()["url"], "create table kept as select 7 as value")
    kill(processes(home)["keeper"])
    wait_until(lambda: is_stopped(home))
    server = start(home, settings=throw_away)
    assert (server.how, query(server.url, "select value from kept")) == ("started", 7)
    server.close()


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; "
    "test_a_killed_keeper_takes_the_server_with_it_and_the_next_start_finds_the_data is fast"
)
def test_after_a_killed_postmaster_the_next_start_recovers_at_the_same_address(
    home, throw_away, user, query, processes, kill
):
    url = user(home).answer()["url"]
    query(url, "create table kept as select 7 as value")
    kill(processes(home)["postmaster"])
    server = start(home, settings=throw_away)
    assert (server.how, server.url) == ("started", url)
    assert query(url, "select value from kept") == 7
    server.close()


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; "
    "test_a_killed_keeper_takes_the_server_with_it_and_the_next_start_finds_the_data is fast"
)
def test_a_start_waits_for_the_last_process_of_a_killed_server(home, throw_away, processes, kill):
    async def scenario() -> None:
        first = start(home, settings=throw_away | {"max_parallel_workers_per_gather": "0"})
        connection = await asyncpg.connect(first.url)
        watcher = await asyncpg.connect(first.url)
        busy_pid = connection.get_server_pid()
        busy = asyncio.create_task(connection.execute("select count(*) from generate_series(1, 6000000)"))
        state = f"select state = 'active' from pg_stat_activity where pid = {busy_pid}"
        while not await watcher.fetchval(state):
            pass  # a computing backend does not notice that its postmaster died
        kill(processes(home)["postmaster"])
        second = await asyncio.to_thread(start, home, settings=throw_away)
        assert (second.how, postmaster.is_alive(busy_pid)) == ("started", False)
        await asyncio.gather(busy, return_exceptions=True)
        watcher.terminate()
        first.close()
        second.close()

    asyncio.run(scenario())


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; "
    "test_a_killed_keeper_takes_the_server_with_it_and_the_next_start_finds_the_data is fast"
)
def test_a_server_that_does_not_answer_is_not_attached_to(home, throw_away, user, processes):
    user(home).answer()
    os.kill(processes(home)["postmaster"], signal.SIGSTOP)
    with pytest.raises(Unavailable) as caught:
        start(home, settings=throw_away, start_seconds_max=0.1)
    assert caught.value.code == "embedded_start_timeout"
    os.kill(processes(home)["postmaster"], signal.SIGCONT)
    start(home, settings=throw_away).close()


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; "
    "test_a_killed_keeper_takes_the_server_with_it_and_the_next_start_finds_the_data is fast"
)
def test_a_starter_killed_while_making_the_data_leaves_nothing_half_made(new_home, user, query, wait_until):
    first = user(new_home)
    wait_until(lambda: any(new_home.glob("pg*.draft/base")))
    first.kill()
    assert locks.is_taken(new_home / "server.lock")  # initdb goes on, and the next start waits for its end
    second = user(new_home).answer()
    assert (second["how"], query(second["url"], "select current_database()")) == ("started", "holdfast")
    assert not any(new_home.glob("*.draft"))


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; "
    "test_a_killed_keeper_takes_the_server_with_it_and_the_next_start_finds_the_data is fast"
)
def test_ctrl_c_and_hang_up_do_not_reach_the_server(home, throw_away, user, query, processes):
    starter = user(home, start_new_session=True)
    starter.answer()
    server = start(home, settings=throw_away)
    for terminal_signal in (signal.SIGINT, signal.SIGHUP):
        os.kill(processes(home)["keeper"], terminal_signal)
    os.killpg(starter.process.pid, signal.SIGINT)
    starter.process.communicate()
    assert (server.how, query(server.url, "select 1")) == ("attached", 1)
    server.close()


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; "
    "test_a_killed_keeper_takes_the_server_with_it_and_the_next_start_finds_the_data is fast"
)
def test_a_terminated_keeper_stops_the_server_in_good_order(home, user, processes, wait_until, is_stopped):
    user(home).answer()
    os.kill(processes(home)["keeper"], signal.SIGTERM)
    wait_until(lambda: not locks.is_taken(home / "keeper.lock"))
    assert is_stopped(home)
    assert status(home).log_tail.endswith("database system is shut down")


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize("stranger", [["sleep", "60"], ["true"]], ids=["running", "ended but not collected"])
def test_the_process_id_of_a_killed_server_may_be_in_use(home, throw_away, user, processes, kill, wait_until, stranger):
    first = user(home)
    first.answer()
    kill(processes(home)["postmaster"])
    first.kill()
    wait_until(lambda: not locks.is_taken(home / "server.lock"))
    pid_file = next(home.glob("pg*/postmaster.pid"))
    owner = pid_file.stat().st_uid
    with subprocess.Popen(stranger, user=owner if os.geteuid() == 0 else None) as other:
        wait_until(lambda: stranger == ["sleep", "60"] or not postmaster.is_alive(other.pid))
        for file in (pid_file, next((home / "run").glob(".s.PGSQL.*.lock"))):
            file.write_text("\n".join([str(other.pid), *file.read_text().splitlines()[1:]]) + "\n")
        start(home, settings=throw_away).close()
        assert postmaster.is_alive(other.pid) == (stranger == ["sleep", "60"])
        other.kill()


@pytest.fixture
def run_by_hand(home, folder, wait_until):
    """Run PostgreSQL on a home's data without a keeper, with the server lock or without."""
    data = next(home.glob("pg*"))
    owner = account.owner_of(data)
    tools = binaries.find(os.environ, major=int(data.name[2:]))
    sockets = folder / "by-hand"
    sockets.mkdir(mode=0o700)
    account.give(sockets, owner)
    running = []

    def run(*keep_open: int) -> subprocess.Popen[bytes]:
        command = cluster.command(tools, data, sockets, {"fsync": "off"})
        run_as = {"user": owner.uid, "group": owner.gid, "extra_groups": []} if owner else {}
        running.append(subprocess.Popen(command, pass_fds=keep_open, stderr=subprocess.DEVNULL, **run_as))
        wait_until(lambda: (found := postmaster.read(data)) is not None and found.is_ready)
        return running[-1]

    yield run
    for process in running:
        process.send_signal(signal.SIGINT)
        process.wait()


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; "
    "test_a_killed_keeper_takes_the_server_with_it_and_the_next_start_finds_the_data is fast"
)
def test_a_server_without_a_keeper_is_stopped_and_started_anew(home, throw_away, run_by_hand):
    start(home, settings=throw_away).close()
    lock = locks.take(home / "server.lock", is_shared=False, deadline=time.monotonic() + 5)
    orphan = run_by_hand(lock)
    os.close(lock)
    server = start(home, settings=throw_away)
    assert (server.how, orphan.wait(timeout=5)) == ("started", 0)
    server.close()


@pytest.mark.slow(
    "it starts a PostgreSQL of its own; "
    "test_a_killed_keeper_takes_the_server_with_it_and_the_next_start_finds_the_data is fast"
)
def test_a_server_somebody_else_runs_on_the_data_is_left_alone(home, throw_away, run_by_hand):
    by_hand = run_by_hand()
    with pytest.raises(Unavailable) as caught:
        start(home, settings=throw_away)
    assert caught.value.code == "embedded_start_failed"
    assert f"PID {by_hand.pid}" in caught.value.fields["log_tail"]
    assert by_hand.poll() is None
