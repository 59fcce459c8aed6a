"""Options that `work`, `server`, `dev` and `attach` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from holdfast.settings.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGroup:
    """Whose actions to run, and with how many processes and slots, as typed.

    None stands for the setting or every queue.
    """

    app_ref: str
    packs: Sequence[str]
    processes: int | None
    slots: int | None
    queues: str | None

    def __bool__(self) -> bool:
        return bool(self.app_ref or self.packs)

    def __str__(self) -> str:
        return " and ".join(filter(None, [self.app_ref, *self.packs]))


def pack_option(command: F) -> F:
    return click.option(
        "--pack",
        "packs",
        multiple=True,
        metavar="DIR",
        help="Also run the YAML actions of this pack, or of all packs in DIR; may be repeated.",
    )(command)


def worker_group_options(command: F) -> F:
    """Add the argument and the options of a `WorkerGroup`."""
    app = click.argument("app_ref", metavar="[APP]", required=False, default="")
    processes = click.option(
        "--processes", type=click.IntRange(1, 1024), help="Worker processes.  [default: the setting, 1]"
    )
    slots = click.option(
        "--slots", type=click.IntRange(1, 100_000), help="Attempts each runs at once.  [default: the setting, 100]"
    )
    queues = click.option("--queues", metavar="A,B", help="Only these queues.  [default: every queue]")
    return app(pack_option(processes(slots(queues(command)))))


def unsafe_option(command: F) -> F:
    return click.option(
        "--unsafe",
        "is_unsafe",
        is_flag=True,
        help="Start even if the server can lose accepted work in a crash (fsync off).",
    )(command)


def folders(packs: Sequence[str]) -> list[str]:
    """Return the folder of each pack. A path without a pack is kept, so that its loader reports it."""
    if not packs:
        return []
    from holdfast.authoring.packs.load import find_packs

    return [str(folder) for path in packs for folder in find_packs(Path(path)) or [Path(path)]]


def with_code(group: WorkerGroup, settings: Settings) -> Settings:
    """Return the settings merged with those in the app's code. An invalid app fails here, before a database starts."""
    from holdfast.authoring.app_settings import settings_for
    from holdfast.authoring.loader import load_app

    return settings_for(load_app(group.app_ref, folders(group.packs)).own_settings, settings)
