"""`holdfast bench`: measure Holdfast on your own machine, compared to what PostgreSQL achieves without any engine.

Data goes to stdout, progress to stderr. Exit code 0 if everything ran once and verified, whatever the speed; 1 if
something was lost, doubled or did not run; 2 if the server or the options are refused.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from holdfast.errors import HoldfastError, Invalid
from holdfast.settings.option import LOCAL
from holdfast.settings.settings import Settings
from holdfast_bench import report
from holdfast_bench.arena import enter
from holdfast_bench.bars import charts
from holdfast_bench.curve import storm_svg
from holdfast_bench.marks import new_marks
from holdfast_bench.peers.field import Peer, chosen_peers
from holdfast_bench.running import run
from holdfast_bench.suite import EXTRA_PARTS, PARTS, losses_and_doubles, run_suite
from holdfast_bench.svg import svg
from holdfast_bench.trial import Trial

TASKS, TASKS_QUICK = 400_000, 5_000
ROUNDS, ROUNDS_QUICK = 5, 1
MARKS_CAPACITY = 1_100_000


def _parts(_context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        return PARTS
    asked = tuple(dict.fromkeys(part.strip() for part in ",".join(value).split(",") if part.strip()))
    for part in asked:
        if part not in (*PARTS, *EXTRA_PARTS):
            raise click.BadParameter(f"{part!r} is none of {', '.join((*PARTS, *EXTRA_PARTS))}.")
    return asked


@click.command()
@click.option("--tasks", type=click.IntRange(100, 10_000_000), help=f"Tasks in a drain.  [default: {TASKS}]")
@click.option("--rounds", type=click.IntRange(1, 100), help=f"Rounds of ours and raw in turn.  [default: {ROUNDS}]")
@click.option(
    "--only",
    multiple=True,
    callback=_parts,
    metavar="PARTS",
    help=f"Some of {','.join((*PARTS, *EXTRA_PARTS))}; may be repeated.",
)
@click.option("--quick", is_flag=True, help="Small and short: a look, not a result.")
@click.option("--full", is_flag=True, help="More kills in the recovery part.")
@click.option("--peers", is_flag=True, help="Install other engines beside and measure them too: drain, flow.")
@click.option("--peer", "chosen", multiple=True, metavar="NAME", help="Only this one of them; may be repeated.")
@click.option("--processes", type=click.IntRange(1, 32), default=2, show_default=True, help="Worker processes.")
@click.option("--slots", type=click.IntRange(1, 10_000), default=1_000, show_default=True, help="Slots of each.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Also draw the rates into this SVG.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "plain"]), default="table", help="How to print.")
def bench(
    tasks: int | None,
    rounds: int | None,
    only: tuple[str, ...],
    quick: bool,
    full: bool,
    peers: bool,
    chosen: tuple[str, ...],
    processes: int,
    slots: int,
    plot: Path | None,
    output: str,
) -> None:
    """Measure drain, enqueue, latency, recovery, backlog, size, memory and idle cost on your database.

    Runs in a temporary database on HOLDFAST_URL's server, or the embedded one, and drops it afterwards.
    """
    options = {
        "tasks": tasks or (TASKS_QUICK if quick else TASKS),
        "rounds": rounds or (ROUNDS_QUICK if quick else ROUNDS),
        "processes": processes,
        "slots": slots,
        "is_quick": quick,
        "is_full": full,
    }
    try:
        with _progress() as say:
            results = run(_measure(only, options, say, chosen_peers(chosen) if peers or chosen else ()))
    except HoldfastError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2 if isinstance(error, Invalid) else 1)
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        sys.exit(130)
    _show(results, output)
    if plot is not None:
        drawn = storm_svg(results["storm"]) if only == ("storm",) else svg(charts(results))
        plot.write_text(drawn, "utf-8")
    if wrong := losses_and_doubles(results):
        click.echo("Error: " + "; ".join(wrong), err=True)
        sys.exit(1)


async def _measure(
    parts: Sequence[str], options: dict[str, Any], say: Callable[[str], None], peers: Sequence[Peer]
) -> dict[str, Any]:
    settings = Settings.load(os.environ)
    if settings.url is None:
        settings = Settings.load(os.environ, env=LOCAL)
    say("preparing")
    with new_marks(max(MARKS_CAPACITY, options["tasks"] + 1)) as marks:
        async with enter(settings) as arena:
            return await run_suite(Trial(arena=arena, marks=marks, say=say, **options), parts, peers)


def _show(results: dict[str, Any], output: str) -> None:
    match output:
        case "json":
            click.echo(json.dumps(results, indent=2))
        case "plain":
            click.echo(report.plain(results))
        case _:
            report.print_table(results)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows progress on stderr. It redraws rarely, so as not to compete with the workers."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: click.echo(text, err=True)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(pulse_style="dim"), TimeElapsedColumn())
    with Progress(*columns, console=console, refresh_per_second=1, transient=True) as progress:
        line = progress.add_task("starting", total=None)
        yield lambda text: progress.update(line, description=text)
