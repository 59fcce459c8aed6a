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
        "URL of the PostgreSQL database. The command line and remote workers also accept the http(s) URL of a server.",
        kind=str,
        is_secret=True,
    )
    token: str | None = setting(
        None, "API token with which this client or worker authenticates to a server.", kind=str, is_secret=True
    )
    direct_url: str | None = setting(
        None,
        "URL of the same PostgreSQL without the connection pooler of `url`. Listening for wake-ups needs a "
        "direct connection.",
        kind=str,
        is_secret=True,
    )
    prepare: str = setting(
        AUTO,
        "Whether statements are prepared once per connection. `auto`: yes, unless a connection pooler is detected.",
        choices=(AUTO, ON, OFF),
    )
    home: Path | None = setting(  # noqa: RUF009 - declares a field, like dataclasses.field
        None, "Directory of the embedded database. Setting it selects the embedded database.", kind=Path
    )
    env: str = setting(
        PRODUCTION,
        "`local` allows development sign-in and the embedded database.",
        choices=(LOCAL, PRODUCTION),
    )
    unsafe: bool = setting(
        False, "Allow a PostgreSQL that can lose accepted work in a crash (`fsync` off). Meant for tests."
    )
    tenant: str = setting("default", "The tenant that this process works for.")
    host: str = setting("127.0.0.1", "Address the server listens on.")
    port: int = setting(8787, "Port the server listens on; 0 selects a free port.", highest=65535)
    internal_host: str | None = setting(
        None,
        "Address of a separate listener for workers (`/internal/*`). The main listener then does not "
        "serve these paths.",
        kind=str,
    )
    internal_port: int | None = setting(
        None,
        f"Port of that listener. Default: {INTERNAL_PORT} if its address is set; 0 selects a free port.",
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
                f"Wake-ups use {self.wake.over}, but its address is not set.",
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

A setting can be set in four places. In order of increasing precedence: the defaults below, `holdfast.toml`, environment
variables, arguments. `HOLDFAST_CONFIG` names the TOML file. If it is not set, a `holdfast.toml` in the current
directory is read, if it exists. A setting that is unknown or malformed, or that contradicts another, is refused at
start with a suggestion.

Arguments (`Settings.load(os.environ, lease_seconds=5)`) are named like the variable, in lower case and without its
prefix. If a variable has several names, the first one that is set is used. `ENV=local` means `HOLDFAST_ENV=local`; any
other value of `ENV` means production. An empty variable counts as not set.

A few variables are also read without the prefix: `ENV`, and the second names in the column "Variable" below
(`MAX_RETRIES`, `REDIS_URL` …). If your own program uses such a name for another purpose, set the variable with the
prefix `HOLDFAST_`: it takes precedence.

## Settings in an app's code

An app can pass settings in its code: `hf.App("shop", settings=…)`. Its clients and processors use them.

A command that runs the app (`holdfast work`, `dev`, `attach`, `task submit --app`) combines them with the settings from
the places above:

- If no database is set there, the command uses the settings of the code. A setting that the code leaves at its default
  comes from the places above.
- If a database is set there (`HOLDFAST_URL`, `HOLDFAST_HOME` or `--url`), all settings come from there. The command
  logs a warning with the settings that the code sets to another value. It refuses to start if the code names another
  database or tenant (`settings_differ`).

To change one setting in code and read the others from the environment, use
`hf.Settings.load(os.environ, lease_seconds=5)`.
"""


def _built(values: Mapping[str, Any]) -> Settings:
    parts: dict[str, dict[str, Any]] = {name: {} for name in _SECTIONS}
    top: dict[str, Any] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        (parts[section] if section else top)[name] = value
    return Settings(**top, **{name: kind(**parts[name]) for name, kind in _SECTIONS.items()})
