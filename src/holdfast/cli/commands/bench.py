"""`holdfast bench`: run the benchmark, a separate package, with the common options."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

from holdfast.cli.ui.command_tree import Command
from holdfast.cli.ui.shell import the_shell
from holdfast.errors import Unavailable

HELP = "Measure this database, and its raw ceiling for comparison."


def _install_first(**_options: Any) -> None:
    raise Unavailable(
        "The benchmark is not installed.",
        code="bench_not_installed",
        advice="Install it from the folder bench/ of the repository: `pip install ./bench`.",
    )


def _command() -> Command:
    if find_spec("holdfast_bench") is None:
        return Command(
            name="bench", callback=_install_first, help=HELP, context_settings={"ignore_unknown_options": True}
        )
    from holdfast_bench.command import bench as measure

    def run(**options: Any) -> Any:
        # The benchmark starts processes, which read the same environment.
        if (url := the_shell().url) is not None:
            os.environ["HOLDFAST_URL"] = url
        assert measure.callback is not None
        return measure.callback(**options)

    return Command(name="bench", callback=run, params=list(measure.params), help=measure.help)


bench = _command()
