"""Resolution of launcher names: profiles from this process's settings, built-in kinds, plug-ins.

The name comes from an action, which may come from any worker; what is run for it is decided here. A name is a profile
`[launchers.NAME]`, or else a built-in kind, or else an entry point of the group `holdfast.launchers`, or else
`module:factory` if the settings allow its import.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from holdfast.errors import InvalidSettings
from holdfast.launchers.contract import Launcher
from holdfast.settings.settings import Settings

GROUP = "holdfast.launchers"
SLOTS_MAX = 10_000
_PROFILE_KEYS = ("kind", "slots", "tenants", "actions", "launch_seconds")

log = logging.getLogger("holdfast.launch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A launcher with its limits: how many launches at once, for which tenants and actions (empty: all), and how long a
    launched worker may take to attach.
    """

    name: str
    launcher: Launcher
    slots: int
    tenants: tuple[str, ...]
    actions: tuple[str, ...]
    launch_seconds: float

    def serves(self, *, tenant: str, action: str) -> bool:
        return (not self.tenants or tenant in self.tenants) and (not self.actions or action in self.actions)


class Profiles:
    """The launchers of one process, created on first use.

    Launchers that cannot be created here are left to other processes.
    """

    def __init__(self, settings: Settings, *, url: str, app_ref: str = "", packs: Sequence[str] = ()) -> None:
        self._settings = settings
        self._process_options: dict[str, Any] = {"url": url, "app_ref": app_ref, "packs": packs}
        self._profiles: dict[str, Profile | None] = {}

    def check(self) -> None:
        """Create every profile of the settings, so that a mistake is reported at start."""
        for name in self._settings.launchers:
            self._profiles[name] = self._make(name)

    def find(self, name: str) -> Profile | None:
        """Return the launcher of that name, or None if this process has none."""
        if name not in self._profiles:
            try:
                self._profiles[name] = self._make(name)
            except Exception as error:  # noqa: BLE001 - a plug-in is foreign code
                log.warning("launcher %s cannot be used here: %s", name, error)
                self._profiles[name] = None
        return self._profiles[name]

    def _make(self, name: str) -> Profile | None:
        values = dict(self._settings.launchers.get(name, {}))
        kind = str(values.get("kind", name))
        is_configured = name in self._settings.launchers
        factory = self._factory(kind, is_configured=is_configured)
        if factory is None:
            if is_configured:
                raise InvalidSettings(
                    f"launchers.{name} has the unknown kind {kind!r}.",
                    advice="Use process, ecs, kubernetes, ray, an installed plug-in, or module:factory.",
                    setting="kind",
                )
            return None
        slots = values.get("slots", self._settings.launch.slots)
        if not isinstance(slots, int) or isinstance(slots, bool) or not 1 <= slots <= SLOTS_MAX:
            raise InvalidSettings(f"launchers.{name}.slots must be a whole number from 1 to {SLOTS_MAX}.")
        seconds = values.get("launch_seconds", self._settings.worker.launch_seconds)
        if not isinstance(seconds, int | float) or not 1 <= seconds <= 86400:
            raise InvalidSettings(f"launchers.{name}.launch_seconds must be a number from 1 to 86400.")
        launcher_options = {key: value for key, value in values.items() if key not in _PROFILE_KEYS}
        return Profile(
            name=name,
            launcher=factory(name, launcher_options),
            slots=slots,
            tenants=_texts(name, values, "tenants"),
            actions=_texts(name, values, "actions"),
            launch_seconds=float(seconds),
        )

    def _factory(self, kind: str, *, is_configured: bool) -> Callable[[str, Mapping[str, Any]], Launcher] | None:
        match kind:
            case "process":
                from holdfast.launchers.process import ProcessLauncher

                return lambda name, values: ProcessLauncher(name, values, **self._process_options)
            case "ecs":
                from holdfast.launchers.ecs import EcsLauncher

                return EcsLauncher
            case "kubernetes":
                from holdfast.launchers.kubernetes import KubernetesLauncher

                return KubernetesLauncher
            case "ray":
                from holdfast.launchers.ray import RayLauncher

                return RayLauncher
        if ":" not in kind:
            return next((_loaded(entry) for entry in entry_points(group=GROUP, name=kind)), None)
        # An action alone cannot make a server import a module: the operator of the server must have named it.
        if is_configured or self._settings.is_local or kind in self._settings.launch.factories:
            return _imported(kind)
        log.warning("launcher %s is not among launch.factories, so it is not imported", kind)
        return None


def _loaded(entry: EntryPoint) -> Callable[[str, Mapping[str, Any]], Launcher]:
    """Load a plug-in; it is foreign code and may fail in any way when it is imported."""
    try:
        found: Callable[[str, Mapping[str, Any]], Launcher] = entry.load()
    except Exception as error:
        raise InvalidSettings(f"The launcher {entry.name} ({entry.value}) cannot be imported: {error}.") from error
    return found


def _imported(kind: str) -> Callable[[str, Mapping[str, Any]], Launcher]:
    module, _, attribute = kind.partition(":")
    try:
        found: Callable[[str, Mapping[str, Any]], Launcher] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidSettings(f"The launcher {kind} cannot be imported: {error}.") from error
    return found


def _texts(name: str, values: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = values.get(key, [])
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise InvalidSettings(f"launchers.{name}.{key} must be a list of texts.")
    return tuple(value)
