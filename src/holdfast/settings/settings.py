"""All settings in one frozen object, read once and passed explicitly; nothing is read at import.

Precedence, weakest first: the defaults here, holdfast.toml, `HOLDFAST_*` variables, arguments. The declarations here
and in `settings.sections` also define the variable names, the TOML keys and the settings reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.errors import InvalidSettings
from holdfast.settings.option import LOCAL, PRODUCTION, Option, options_of, setting, table_of
from holdfast.settings.sections import (
    POSTGRES,
    REDIS,
    SQS,
    AuthSettings,
    EgressSettings,
    HttpSettings,
    LaunchSettings,
    LimitSettings,
    LogSettings,
    LoopSettings,
    RetrySettings,
    WakeSettings,
    WebhookSettings,
    WorkerSettings,
)
from holdfast.settings.sources import from_ambient, from_arguments, from_environment, from_toml, usual_toml

__all__ = [
    "AUTO",
    "INTERNAL_PORT",
    "OFF",
    "ON",
    "POSTGRES",
    "REDIS",
    "SQS",
    "AuthSettings",
    "EgressSettings",
    "HttpSettings",
    "LaunchSettings",
    "LimitSettings",
    "LogSettings",
    "LoopSettings",
    "RetrySettings",
    "Settings",
    "WakeSettings",
    "WebhookSettings",
    "WorkerSettings",
    "options",
    "reference",
]

AUTO, ON, OFF = "auto", "on", "off"
INTERNAL_PORT = 8788


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The configuration of a process; contradictions are refused when it is created."""

    url: str | None = setting(
        None,
        "PostgreSQL to use; for the command line and for workers elsewhere also a server, as http(s)://….",
        kind=str,
        is_secret=True,
    )
    token: str | None = setting(None, "Token by which a server knows this client or worker.", kind=str, is_secret=True)
    direct_url: str | None = setting(
        None,
        "The same PostgreSQL without the pooler that `url` leads through; wake-ups are heard there.",
        kind=str,
        is_secret=True,
    )
    prepare: str = setting(
        AUTO,
        "Whether statements are prepared once per connection; `auto`: unless a pooler shows itself.",
        choices=(AUTO, ON, OFF),
    )
    home: Path | None = setting(  # noqa: RUF009 - declares a field, like dataclasses.field
        None, "Directory of the embedded database; setting it asks for one.", kind=Path
    )
    env: str = setting(
        PRODUCTION,
        "`local` allows development sign-in and the embedded database.",
        choices=(LOCAL, PRODUCTION),
    )
    unsafe: bool = setting(
        False, "Work on a PostgreSQL that can lose accepted work in a crash (`fsync` off), as tests do."
    )
    tenant: str = setting("default", "The tenant that this process works for.")
    host: str = setting("127.0.0.1", "Address the server listens on.")
    port: int = setting(8787, "Port the server listens on; 0 takes any free one.", highest=65535)
    internal_host: str | None = setting(
        None, "Address of an own listener for workers (`/internal/*`), which the other then does not offer.", kind=str
    )
    internal_port: int | None = setting(
        None,
        f"Port of that listener, {INTERNAL_PORT} if only its address is set; 0 takes any free one.",
        kind=int,
        highest=65535,
    )
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    loops: LoopSettings = field(default_factory=LoopSettings)
    retry: RetrySettings = field(default_factory=RetrySettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    wake: WakeSettings = field(default_factory=WakeSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    egress: EgressSettings = field(default_factory=EgressSettings)
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)
    launch: LaunchSettings = field(default_factory=LaunchSettings)
    log: LogSettings = field(default_factory=LogSettings)
    launchers: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False, repr=False)
    """Launch profiles by name, only from `[launchers.NAME]` in the file; see docs/launchers.md."""

    def __post_init__(self) -> None:
        for option in options():
            holder = getattr(self, option.section) if option.section else self
            value = getattr(holder, option.field)
            if value is not None or option.default is not None:
                option.read(value, source=option.key)
        if self.worker.heartbeat_seconds * 3 > self.worker.lease_seconds * (1 + 1e-9):
            raise InvalidSettings(
                f"heartbeat_seconds is {self.worker.heartbeat_seconds:g} and lease_seconds is "
                f"{self.worker.lease_seconds:g}: a lease must outlive three heartbeats.",
                code="heartbeat_too_slow",
                advice=f"Set HOLDFAST_HEARTBEAT_SECONDS to at most {self.worker.lease_seconds / 3:.3g}, "
                f"or HOLDFAST_LEASE_SECONDS to at least {self.worker.heartbeat_seconds * 3:g}.",
            )
        self._require_carrier()

    def _require_carrier(self) -> None:
        """Refuse a carrier without an address now; otherwise only the first wake-up would fail."""
        addresses = {SQS: (self.wake.sqs_queue_url, "SQS_QUEUE_URL"), REDIS: (self.wake.redis_url, "REDIS_URL")}
        address, name = addresses.get(self.wake.over, ("none needed", ""))
        if not address:
            raise InvalidSettings(
                f"Wake-ups are to go over {self.wake.over}, and its address is not set.",
                code="carrier_without_address",
                advice=f"Set HOLDFAST_{name}, or HOLDFAST_WAKE=postgres.",
                setting="wake.over",
            )

    @classmethod
    def load(cls, environ: Mapping[str, str], *, toml_path: Path | None = None, **overrides: object) -> Settings:
        """Read the settings of this process; `overrides` use flat names, such as `lease_seconds=5`.

        An override of `None` counts as not given. Without `toml_path`, HOLDFAST_CONFIG names the file; else a
        holdfast.toml in the current directory is read if it exists.
        """
        path = toml_path or usual_toml(environ)
        table = options()
        values = from_toml(table, path) if path else {}
        values |= from_ambient(environ)
        values |= from_environment(table, environ)
        values |= from_arguments(table, overrides)
        return _built(values)

    @property
    def is_local(self) -> bool:
        """Whether this is a developer's own machine."""
        return self.env == LOCAL

    @property
    def internal_address(self) -> tuple[str, int] | None:
        """The address of the separate listener for workers, if there is one."""
        if self.internal_host is None and self.internal_port is None:
            return None
        port = INTERNAL_PORT if self.internal_port is None else self.internal_port
        return self.internal_host or self.host, port


_SECTIONS: Mapping[str, type] = {
    "worker": WorkerSettings,
    "loops": LoopSettings,
    "retry": RetrySettings,
    "limits": LimitSettings,
    "wake": WakeSettings,
    "http": HttpSettings,
    "auth": AuthSettings,
    "egress": EgressSettings,
    "webhooks": WebhookSettings,
    "launch": LaunchSettings,
    "log": LogSettings,
}


@cache
def options() -> tuple[Option, ...]:
    """Return the table of all settings."""
    return options_of(Settings) + tuple(
        option for name, kind in _SECTIONS.items() for option in options_of(kind, section=name)
    )


def reference() -> str:
    """Return the reference page of settings."""
    parts = [_PREAMBLE, "## General\n", table_of(option for option in options() if not option.section)]
    for name, kind in _SECTIONS.items():
        about = (kind.__doc__ or "").strip()
        parts += [f"## {name}\n", f"{about}\n", table_of(o for o in options() if o.section == name)]
    return "\n".join(parts)


_PREAMBLE = """\
# Settings

<!-- Generated by tools/generate_docs.py from src/holdfast/settings/; change it there. -->

From weakest to strongest: the defaults below, `holdfast.toml`, environment variables, arguments.
`HOLDFAST_CONFIG` names the TOML file; without it, a `holdfast.toml` in the current directory is read if there
is one. A setting that is unknown, malformed or contradicts another is refused at start, with a suggestion.

Arguments (`Settings.load(os.environ, lease_seconds=5)`) are named like the variable, in lower case and
without its prefix. Where a variable has several names, the first one that is set counts. `ENV=local` is
understood as `HOLDFAST_ENV=local`; any other value of `ENV` means production. An empty
variable counts as not set.

A few variables are also read without the prefix, for programs that set them so: `ENV`, and those in the second place of
the column "Variable" below (`MAX_RETRIES`, `REDIS_URL` …). Where your own program means something else by such a
name, set the one with `HOLDFAST_`: it always wins.

Settings that an app's own code gives (`hf.App("shop", settings=…)`) are what its clients and processors go by. A
command that runs the app (`holdfast work`, `dev`, `attach`, `task submit --app`) goes by them too where it was told
no database; what it was told counts for whatever the code leaves at its default. Told a database, it goes by what it
was told and names in its log what the code sets otherwise; code that means another database or tenant is refused
(`settings_differ`). `hf.Settings.load(os.environ, lease_seconds=5)` in code keeps to the environment for the rest.
"""


def _built(values: Mapping[str, Any]) -> Settings:
    parts: dict[str, dict[str, Any]] = {name: {} for name in _SECTIONS}
    top: dict[str, Any] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        (parts[section] if section else top)[name] = value
    return Settings(**top, **{name: kind(**parts[name]) for name, kind in _SECTIONS.items()})
