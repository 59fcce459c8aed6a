"""`holdfast bench`: the bench's own command, with the options every command takes."""

from __future__ import annotations

import os
from typing import Any

from holdfast.bench.command import bench as measure
from holdfast.cli.shell import the_shell
from holdfast.cli.tree import Command


def _bench(**options: Any) -> Any:
    # The bench starts processes of its own; they read the same environment.
    if (url := the_shell().url) is not None:
        os.environ["HOLDFAST_URL"] = url
    assert measure.callback is not None
    return measure.callback(**options)


bench = Command(name="bench", callback=_bench, params=list(measure.params), help=measure.help)
