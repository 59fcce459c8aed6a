"""Contract of a launcher: start a worker for one task on a platform, check whether it runs, stop it.

A launcher only starts and stops workers; the database decides whether an attempt is open, lost or over. Each of the
three methods may be called again with the same arguments, by another process, at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from holdfast.errors import InvalidSettings, Unavailable
from holdfast.settings.sources import unknown

TOKEN_VARIABLE = "HOLDFAST_LAUNCH_TOKEN"
TASK_VARIABLE = "HOLDFAST_TASK_ID"
ATTEMPT_VARIABLE = "HOLDFAST_ATTEMPT"
TENANT_VARIABLE = "HOLDFAST_TENANT"
APP_VARIABLE = "HOLDFAST_APP"
URL_VARIABLE = "HOLDFAST_URL"


class LaunchError(Unavailable):
    """Nothing was launched, or the outcome is unknown; the detail contains the platform's message."""

    default_code = "launch_failed"


class NotHere(LaunchError):
    """The launch to be stopped runs where this process cannot reach it; another process can."""

    default_code = "launched_elsewhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """One launch. Nothing of it comes from the task's input: image, command and role are chosen by the profile.

    `name` is the same for every try of an attempt: a launcher that is asked again returns the launch that already runs.
    """

    name: str
    token: str = field(repr=False)
    task_id: str
    attempt: int
    action: str
    queue: str
    tenant: str

    @property
    def environment(self) -> dict[str, str]:
        """The environment that describes its attempt to the launched worker, and nothing more."""
        return {
            TOKEN_VARIABLE: self.token,
            TASK_VARIABLE: self.task_id,
            ATTEMPT_VARIABLE: str(self.attempt),
            TENANT_VARIABLE: self.tenant,
        }


class LaunchState(StrEnum):
    """The state of a launch, as its platform reports it."""

    RUNNING = "running"
    """Running, or about to run."""
    STOPPED = "stopped"
    MISSING = "missing"
    """Unknown to the platform: too recent to be listed, or long gone."""
    UNKNOWN = "unknown"
    """It cannot be observed from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchStatus:
    """One observation, with the platform's own message."""

    state: LaunchState
    detail: str = ""


class Launcher(Protocol):
    """One platform with one profile. `kind` is a display name."""

    @property
    def kind(self) -> str: ...

    async def launch(self, order: LaunchOrder) -> str:
        """Start the worker and return the platform's handle; raise `LaunchError` if that failed."""
        ...

    async def describe(self, handles: Sequence[str]) -> Mapping[str, LaunchStatus]:
        """Return the state of each handle; one that is left out cannot be observed."""
        ...

    async def stop(self, name: str, handle: str | None) -> None:
        """Stop the launch, if it runs. Without a handle, stop whatever was started under the name."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one profile; an unknown option is refused as a mistake in the file."""

    profile: str
    values: Mapping[str, Any]
    known: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in self.values:
            if name not in self.known:
                raise unknown(f"launchers.{self.profile}.{name}", name, self.known)

    def text(self, name: str, default: str = "") -> str:
        return str(self._checked(name, str, default, "text"))

    def required(self, name: str) -> str:
        if not (value := self.text(name)):
            raise InvalidSettings(
                f"launchers.{self.profile} needs {name}.", advice="See docs/launchers.md.", setting=name
            )
        return value

    def number(self, name: str, default: int) -> int:
        value = self._checked(name, int, default, "a whole number")
        return int(value)

    def truth(self, name: str, default: bool) -> bool:
        return bool(self._checked(name, bool, default, "true or false"))

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._checked(name, list, [], "a list of texts")
        if not all(isinstance(text, str) for text in value):
            raise self._refusal(name, "a list of texts")
        return tuple(value)

    def table(self, name: str) -> dict[str, Any]:
        return dict(self._checked(name, dict, {}, "a table"))

    def environment(self) -> dict[str, str]:
        """Return `env`: texts by name. The variables that identify the attempt cannot be set here."""
        table = self.table("env")
        taken = {TOKEN_VARIABLE, TASK_VARIABLE, ATTEMPT_VARIABLE} & table.keys()
        if taken or not all(isinstance(value, str) for value in table.values()):
            raise self._refusal("env", f"a table of texts, without {', '.join(sorted(taken)) or 'other values'}")
        return table

    def _checked(self, name: str, kind: type, default: Any, noun: str) -> Any:
        value = self.values.get(name, default)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self._refusal(name, noun)
        return value

    def _refusal(self, name: str, noun: str) -> InvalidSettings:
        return InvalidSettings(f"launchers.{self.profile}.{name} must be {noun}.", setting=name)
