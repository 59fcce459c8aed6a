"""`make demo`: one ordinary bad day in half a minute, live in the terminal.

An embedded PostgreSQL (or that of HOLDFAST_URL), two workers, a few hundred tasks; mail servers hang up, a card cannot
be charged, and one worker is killed with -9 while it works. In the evening a flow closes the day, and the server
answers over HTTP. Ends by itself with CI=true or ONCE=1; otherwise it stays up until Ctrl-C.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from datetime import timedelta
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text
from shop import app, charge, close_day, monthly_report, send_receipt, thumbnail

import holdfast as hf
from holdfast.server.app import serving
from holdfast.store.resolve import DatabaseLocation, resolve_database

HERE = Path(__file__).resolve().parent
LEASE_SECONDS, HEARTBEAT_SECONDS = "3", "1"
QUEUES = ("mail", "orders", "images", "reports")
COUNT_BY_STATE = """
select queue, case when next_retry_at is not null then 'retrying' else state end as state, count(*)::int as tasks
from holdfast.tasks
where task_id = any($1::text[])
group by 1, 2
"""
BUSY_WORKERS = """
select w.name, count(*)::int as reports
from holdfast.tasks t
join holdfast.worker w on w.worker_id = t.worker_id
where t.task_id = any($1::text[]) and t.state = 'running' and t.queue = 'reports'
group by w.name
"""
HELD = """
select count(*)::int
from holdfast.tasks t
join holdfast.worker w on w.worker_id = t.worker_id
where t.task_id = any($1::text[]) and t.state = 'running' and w.name = $2
"""
SUMMARY = """
select t.queue, count(*)::int as tasks,
  count(*) filter (where t.state = 'completed')::int as completed,
  count(*) filter (where t.state = 'failed')::int as failed,
  sum(t.attempt)::int as attempts,
  sum(t.retry_count)::int as retried,
  sum(t.loss_count)::int as lost
from holdfast.tasks t
where t.task_id = any($1::text[])
group by t.queue
order by t.queue
"""


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def program() -> str:
    """How `holdfast` is typed here: its folder is not on everybody's PATH."""
    if shutil.which("holdfast") is not None:
        return "holdfast"
    beside = Path(sys.executable).parent / "holdfast"
    return str(beside.relative_to(Path.cwd())) if beside.is_relative_to(Path.cwd()) else str(beside)


def free_port() -> str:
    """The usual port, or any other while somebody has that one."""
    for port in (8787, 0):
        with socket.socket() as asked:
            try:
                asked.bind(("127.0.0.1", port))
            except OSError:
                continue
            return str(asked.getsockname()[1])
    raise AssertionError("there is always a port")


def parent_of(pid: int) -> int:
    """Whose child a process is: from /proc where there is one, since small images have no `ps`."""
    if (about := Path(f"/proc/{pid}/stat")).exists():
        return int(about.read_text().rpartition(")")[2].split()[1])
    answer = subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, text=True, check=True)
    return int(answer.stdout)


class Crew:
    """Two workers as an operator would start them: `holdfast work shop.py:app`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.processes = [self._start(), self._start()]

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "HOLDFAST_URL": self._url,
            "HOLDFAST_LEASE_SECONDS": LEASE_SECONDS,
            "HOLDFAST_HEARTBEAT_SECONDS": HEARTBEAT_SECONDS,
        }
        command = [sys.executable, "-m", "holdfast", "work", f"{HERE / 'shop.py'}:app", "--slots", "12"]
        return subprocess.Popen(
            command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self, worker_name: str) -> int:
        """Kill one worker and the parent that would restart it, without a warning, as a lost machine would."""
        pid = int(worker_name.rpartition(":")[2])
        parent = next(process for process in self.processes if process.pid == parent_of(pid))
        parent.kill()
        os.kill(pid, signal.SIGKILL)
        parent.wait()
        self.processes.remove(parent)
        return pid

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


class Show:
    """What the terminal shows while work goes on."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bars = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._by_queue = {name: self._bars.add_task(name, total=0, note="") for name in QUEUES}
        self._notifications: list[str] = []
        self.live = Live(self._view(), console=console, refresh_per_second=8)

    def say(self, line: str) -> None:
        if self.console.is_terminal:
            self._notifications.append(line)
        else:
            self.console.print(line, highlight=False)

    def update(self, counts: dict[str, Counter[str]]) -> bool:
        """Draw the counts; True when everything is over."""
        for queue, states in counts.items():
            over = states["completed"] + states["failed"] + states["canceled"]
            words = ("queued", "running", "retrying", "failed")
            note = "  ".join(f"{states[word]} {word}" for word in words if states[word])
            self._bars.update(self._by_queue[queue], total=states.total(), completed=over, note=note)
        if self.console.is_terminal:
            self.live.update(self._view())
        return all(s["completed"] + s["failed"] + s["canceled"] == s.total() for s in counts.values())

    def _view(self) -> Group:
        return Group(self._bars, *(Text.from_markup(line) for line in self._notifications))


async def until_ready(client: hf.Client) -> None:
    """Both workers register before work comes, so that the show is the same every time."""
    fresh = "beat_at > holdfast.instant() - $1::interval"
    present = f"select count(*)::int from holdfast.worker where state = 'active' and {fresh}"
    while await client.engine.database.fetchval(present, timedelta(seconds=5)) < 2:
        await asyncio.sleep(0.05)


async def enqueue(client: hf.Client) -> list[str]:
    """A morning's work."""
    tasks = await client.enqueue_many(send_receipt, ({"order_id": order} for order in range(1, 141)))
    tasks += await client.enqueue_many(thumbnail, ({"path": f"/photos/{photo}.jpg"} for photo in range(100)))
    tasks += await client.enqueue_many(
        charge, ({"order_id": order, "cents": 0 if order % 40 == 0 else 1999} for order in range(1, 101))
    )
    tasks += await client.enqueue_many(monthly_report, ({"month": f"2026-{month:02}"} for month in range(1, 13)))
    tasks += await client.enqueue_many(monthly_report, ({"month": f"2025-{month:02}"} for month in range(1, 13)))
    return [task.task_id for task in tasks]


async def run(place: DatabaseLocation, console: Console) -> bool:
    """Run the whole show; True if everything ended as it should."""
    app.configure(hf.Settings.load({"HOLDFAST_URL": place.url, "HOLDFAST_ENV": "local", "HOLDFAST_PORT": free_port()}))
    crew = Crew(place.url)
    try:
        async with app.client() as client:
            await until_ready(client)
            task_ids = await enqueue(client)
            console.print(f"[bold]{len(task_ids)} tasks[/] accepted, two workers at work.\n", highlight=False)
            await watch(client, crew, console, task_ids)
            await explain(client, console, task_ids)
            is_right = await summary(client, console, task_ids)
            is_right = await evening(client, console) == "completed" and is_right
            async with serving(client.engine) as server_url:
                is_right = await ask(server_url, console) and is_right
                if os.environ.get("CI") != "true" and os.environ.get("ONCE") != "1":
                    await stay(place, server_url, console)
        return is_right
    finally:
        crew.stop()


async def watch(client: hf.Client, crew: Crew, console: Console, task_ids: list[str]) -> None:
    show, killed_at, held, is_recovered = Show(console), 0.0, 0, False
    database = client.engine.database
    with show.live:
        while True:
            counts: dict[str, Counter[str]] = {}
            for queue, state, tasks in await database.fetch(COUNT_BY_STATE, task_ids):
                counts.setdefault(queue, Counter())[state] += tasks
            if show.update(counts):
                return
            busy = [] if killed_at else await database.fetch(BUSY_WORKERS, task_ids)
            if len(busy) >= 2:
                worker = busy[0]["name"]
                pid, killed_at = crew.kill(worker), time.monotonic()
                # Nobody is left to report these: what it holds now is what is lost.
                held = await database.fetchval(HELD, task_ids, worker)
                show.say(f"[bold red]kill -9[/] of worker {pid} while it runs {counted(held, 'task')}")
            elif killed_at and not is_recovered and await losses(client, task_ids) >= held:
                is_recovered = True
                seconds = time.monotonic() - killed_at
                lost = counted(held, "lost attempt")
                show.say(f"[bold yellow]{lost}[/] found after {seconds:.1f} s, running again on the other worker")
            await asyncio.sleep(0.1)


async def losses(client: hf.Client, task_ids: list[str]) -> int:
    statement = "select count(*)::int from holdfast.attempts where task_id = any($1::text[]) and state = 'lost'"
    return int(await client.engine.database.fetchval(statement, task_ids))


async def explain(client: hf.Client, console: Console, task_ids: list[str]) -> None:
    """`why`, for one task of each kind that did not go smoothly."""
    picks = await client.engine.database.fetch(
        """
        select distinct on (kind) kind, task_id
        from (
          select task_id, case when state = 'failed' then 'failed' when loss_count > 0 then 'lost'
            when retry_count > 0 then 'retried' end as kind
          from holdfast.tasks where task_id = any($1::text[])
        ) as told
        where kind is not null
        """,
        task_ids,
    )
    console.print("\n[bold]Why?[/]")
    for pick in picks:
        told = await client.task(pick["task_id"]).why()
        console.print(f"  [dim]holdfast task why {pick['task_id']}[/]", highlight=False)
        console.print(f"    {told.headline}", highlight=False, markup=False)
        for line in told.evidence[:3]:
            console.print(f"      {line}", style="dim", highlight=False, markup=False)


async def summary(client: hf.Client, console: Console, task_ids: list[str]) -> bool:
    table = Table(title="\nThe day in numbers", title_justify="left", title_style="bold")
    for name in ("queue", "tasks", "completed", "failed", "attempts", "retried", "lost"):
        table.add_column(name, justify="left" if name == "queue" else "right")
    rows = await client.engine.database.fetch(SUMMARY, task_ids)
    for row in rows:
        table.add_row(*(str(value) for value in row))
    console.print(table)
    completed, failed = (sum(row[name] for row in rows) for name in ("completed", "failed"))
    console.print(
        f"{len(task_ids)} accepted = {completed} completed + {failed} failed with a reason. [bold]Nothing lost.[/]",
        highlight=False,
    )
    return completed + failed == len(task_ids) and failed == 2


async def evening(client: hf.Client, console: Console) -> str:
    """One run of a flow: a node after the other, some of them at once."""
    run = await client.start(close_day, day="2026-11-15")
    console.print(f"\n[bold]A flow closes the day[/], run {run.run_id}:", highlight=False)
    bar = Progress(TextColumn("  {task.description}"), BarColumn(bar_width=32), MofNCompleteColumn(), console=console)
    with bar:
        nodes = {task.node for task in await run.tasks()}
        shown = bar.add_task("close_day", total=len(nodes))
        async for event in run.events():
            over = [task for task in await run.tasks() if task.state in ("completed", "failed", "skipped")]
            bar.update(shown, completed=len({task.node for task in over}))
            if event.kind in ("execution.completed", "execution.failed", "execution.canceled"):
                break
    state = await run.wait(timeout=60)
    for task in await run.tasks():
        console.print(f"    {task.state:<10} {task.node}", highlight=False, style="dim")
    console.print(f"  {state}: {(await run.result())['mail']}", highlight=False)
    return state


async def ask(server_url: str, console: Console) -> bool:
    """The same day over HTTP, as any program may ask."""
    request = urllib.request.Request(f"{server_url}/api/v1/tasks?state=failed", headers={"x-dev-user": "demo"})
    answer = await asyncio.to_thread(lambda: json.load(urllib.request.urlopen(request, timeout=10)))
    console.print(f"\n[bold]HTTP[/] at {server_url}", highlight=False)
    console.print(f"  [dim]curl -H 'x-dev-user: you' '{server_url}/api/v1/tasks?state=failed'[/]", highlight=False)
    console.print(f"    {len(answer['tasks'])} failed tasks, each with its reason", highlight=False)
    return bool(answer["tasks"])


async def stay(place: DatabaseLocation, server_url: str, console: Console) -> None:
    # Lines to be copied are not broken, however narrow the terminal is.
    whole = {"highlight": False, "soft_wrap": True}
    console.print(f"\nStill up. In another terminal:\n  export HOLDFAST_URL='{place.url}'", **whole)
    console.print(f"  (or the server: export HOLDFAST_ENV=local HOLDFAST_URL={server_url})", **whole)
    for command in ("task list --state failed", "run list", "dead groups"):
        console.print(f"  {program()} {command}", **whole)
    console.print("\nCtrl-C ends it.", highlight=False)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()


def main() -> int:
    console = Console()
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))  # leave through the finally clauses
    started = time.monotonic()
    given = os.environ.get("HOLDFAST_URL")
    where = {"HOLDFAST_URL": given} if given else {"HOLDFAST_HOME": str(HERE.parent / ".holdfast")}
    place = resolve_database(hf.Settings.load({"HOLDFAST_ENV": "local", **where}))
    try:
        which = "Embedded PostgreSQL" if place.is_embedded else "PostgreSQL of HOLDFAST_URL"
        console.print(f"{which} is up after {time.monotonic() - started:.1f} s.", highlight=False)
        from holdfast.store.database import Database
        from holdfast.store.migrate import migrate

        async def prepare() -> None:
            database = await Database(place.url).open()
            await migrate(database)
            await database.close()

        asyncio.run(prepare())
        return 0 if asyncio.run(run(place, console)) else 1
    finally:
        place.close()


if __name__ == "__main__":
    sys.exit(main())
