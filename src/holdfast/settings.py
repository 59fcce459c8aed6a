"""Every setting in one frozen object, read once and passed on explicitly; nothing is read at import.

From weakest to strongest: the defaults here, holdfast.toml, `HOLDFAST_*` variables, arguments.
The declarations below also give the variable names, the TOML keys and docs/settings.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.errors import InvalidSettings
from holdfast.settings_option import LOCAL, PRODUCTION, Option, options_of, setting, table_of
from holdfast.settings_source import from_ambient, from_arguments, from_environment, from_toml, usual_toml

AUTO, ON, OFF = "auto", "on", "off"

POSTGRES, SQS, REDIS = "postgres", "sqs", "redis"
_DAY_SECONDS = 24 * 60 * 60
_MEBIBYTE = 1024 * 1024
INTERNAL_PORT = 8788


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How workers claim, hold and give up work."""

    lease_seconds: float = setting(10.0, "How long a claim holds without a heartbeat.", lowest=0.3, highest=3600)
    heartbeat_seconds: float = setting(
        3.0, "How often leases are extended; at most a third of lease_seconds.", lowest=0.1, highest=1200
    )
    slots: int = setting(100, "Attempts one worker process runs at once.", lowest=1, highest=100_000)
    processes: int = setting(1, "Worker processes under one parent.", lowest=1, highest=1024)
    poll_seconds: float = setting(1.0, "The longest wait for work when no wake-up arrives.", lowest=0.01, highest=300)
    shutdown_seconds: float = setting(30.0, "How long a stopping worker lets attempts finish.", highest=86400)
    cancel_grace_seconds: float = setting(
        10.0, "How long a canceled or timed-out attempt may clean up before it is forced.", highest=86400
    )
    launch_seconds: float = setting(
        120.0,
        "How long a launched worker may take to attach before it counts as lost.",
        lowest=1,
        highest=86400,
    )
    probe_url: str | None = setting(
        None, "URL of this worker that the server asks now and then whether it is well.", kind=str
    )
    timeout_seconds: float | None = setting(
        None,
        "The execution limit of actions that set none; without it they may run for ever.",
        kind=float,
        lowest=0.001,
        highest=10 * 365 * _DAY_SECONDS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """How often the repair passes run, and how long history is kept."""

    reap_seconds: float = setting(1.0, "Pause between passes over expired leases.", lowest=0.01, highest=3600)
    reconcile_seconds: float = setting(
        0.5, "Pause between passes over due retries and delayed tasks.", lowest=0.01, highest=3600
    )
    sweep_seconds: float = setting(
        1.0, "Pause between passes over dead letters and campaigns.", lowest=0.01, highest=3600
    )
    schedule_seconds: float = setting(1.0, "Pause between passes over schedules.", lowest=0.01, highest=3600)
    vacuum_seconds: float = setting(1.0, "Pause between vacuums of the live table.", lowest=0.1, highest=86400)
    retention_days: float = setting(30.0, "How long completed work is kept.", lowest=0.01, highest=36500)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    """The defaults of every retry policy."""

    enabled: bool = setting(True, "Whether failures are retried at all.", flat_name="retry_enabled")
    max_retries: int = setting(
        3, "Retries after the first attempt of a task.", highest=10_000, aliases=("MAX_RETRIES",)
    )
    max_losses: int = setting(3, "Retries after lost attempts of a task.", highest=10_000)
    base_backoff_secs: float = setting(
        1.0, "Pause before the first retry.", highest=30 * _DAY_SECONDS, flat_name="retry_base_backoff_secs"
    )
    max_backoff_secs: float = setting(
        300.0,
        "The longest pause, before jitter.",
        highest=30 * _DAY_SECONDS,
        flat_name="retry_max_backoff_secs",
    )
    backoff_multiplier: float = setting(
        2.0,
        "Growth of the pause from retry to retry.",
        lowest=1,
        highest=1000,
        flat_name="retry_backoff_multiplier",
    )
    jitter_factor: float = setting(
        0.2, "Random spread of the pause, as a part of it.", highest=0.999, flat_name="retry_jitter_factor"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """The largest bodies that are accepted."""

    input_bytes_max: int = setting(_MEBIBYTE, "Encoded input of one task.", lowest=1, highest=256 * _MEBIBYTE)
    output_bytes_max: int = setting(8 * _MEBIBYTE, "Encoded output of one task.", lowest=1, highest=256 * _MEBIBYTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeSettings:
    """What carries wake-ups. `{queue}` in an address stands for the name of the task's queue."""

    over: str = setting(
        POSTGRES,
        "What carries wake-ups to workers; sqs and redis also need `holdfast wake on`, once.",
        choices=(POSTGRES, SQS, REDIS),
        flat_name="wake",
    )
    redis_url: str | None = setting(
        None,
        "Redis for wake-ups.",
        kind=str,
        is_secret=True,
        aliases=("REDIS_URL", "TASK_TRACKING_REDIS_URL"),
    )
    redis_key_prefix: str = setting(
        "holdfast", "Prefix of Redis keys; the stream is PREFIX:wake.", aliases=("EXECUTIONS_REDIS_KEY_PREFIX",)
    )
    sqs_queue_url: str | None = setting(
        None, "SQS queue for wake-ups.", kind=str, aliases=("IMPLEMENTATION_SQS_QUEUE_URL",)
    )
    sqs_dead_letter_url: str | None = setting(
        None, "The dead-letter queue of that queue: hints there are sent again while their task waits.", kind=str
    )
    visibility_seconds: float = setting(
        30.0,
        "How long a received hint is hidden from other workers, and how often it is renewed.",
        lowest=1,
        highest=43200,
    )
    hints_max: int = setting(
        100, "Outstanding hints per queue; `holdfast wake on` stores it.", lowest=1, highest=100_000
    )
    resend_seconds: float = setting(
        30.0, "When a hint is sent again while its task still waits; doubled each time.", lowest=0.05, highest=86400
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """How many requests the server takes from one address, one caller and one tenant; workers are not counted."""

    peer_requests_per_second: float = setting(500.0, "Requests from one address, on average.", lowest=0.1, highest=1e6)
    peer_requests_burst: int = setting(1000, "Requests from one address at once.", lowest=1, highest=1_000_000)
    caller_requests_per_second: float = setting(200.0, "Requests of one caller, on average.", lowest=0.1, highest=1e6)
    caller_requests_burst: int = setting(400, "Requests of one caller at once.", lowest=1, highest=1_000_000)
    tenant_requests_per_second: float = setting(500.0, "Requests of one tenant, on average.", lowest=0.1, highest=1e6)
    tenant_requests_burst: int = setting(1000, "Requests of one tenant at once.", lowest=1, highest=1_000_000)
    caller_streams_max: int = setting(
        1024, "Streams of events that one caller may have open on one server.", lowest=1, highest=1_000_000
    )
    tenant_streams_max: int = setting(
        3072,
        "Streams of events and waiting workers that one tenant may have on one server, which takes 4096 connections.",
        lowest=1,
        highest=1_000_000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthSettings:
    """Who may sign in."""

    google_client_ids: tuple[str, ...] = setting(
        (),
        "Accepted audiences of Google ID tokens, comma-separated. Setting it lets members sign in with Google.",
        aliases=("TASK_DASHBOARD_GOOGLE_CLIENT_IDS",),
    )
    google_jwks_url: str = setting("https://www.googleapis.com/oauth2/v3/certs", "Where Google's keys are.")
    oidc_issuer: str | None = setting(
        None, "Another issuer of ID tokens, exactly as its tokens say it in `iss`.", kind=str
    )
    oidc_audiences: tuple[str, ...] = setting((), "Accepted audiences of its ID tokens, comma-separated.")
    oidc_jwks_url: str | None = setting(None, "Where its keys are, the `jwks_uri` of its discovery document.", kind=str)
    oidc_hd: tuple[str, ...] = setting(
        (), "Hosted domains (`hd`) people must belong to, comma-separated; without it only membership counts."
    )
    token_cache_seconds: float = setting(
        5.0, "How long a verified token is believed before it is looked up again.", highest=60
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressSettings:
    """Where the engine may send requests that others asked for: webhooks and probes."""

    allow: tuple[str, ...] = setting(
        (),
        "Networks, addresses and host names that may be asked although they are not public, comma-separated.",
        flat_name="egress_allow",
    )
    ports: str = setting("80,443,8080,8443", "Ports that may be asked; `*` opens every one.", flat_name="egress_ports")
    proxy: str | None = setting(
        None,
        "Proxy that all such requests go through; it resolves names, so it must refuse inner addresses itself.",
        kind=str,
        is_secret=True,
        flat_name="egress_proxy",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """How events are delivered, and workers probed."""

    timeout_seconds: float = setting(
        10.0, "How long a receiver may take to answer.", lowest=0.05, highest=25, flat_name="webhook_timeout_seconds"
    )
    failures_max: int = setting(
        20,
        "Failed deliveries of one event in a row that pause its webhook.",
        lowest=1,
        highest=10_000,
        flat_name="webhook_failures_max",
    )
    look_seconds: float = setting(
        1.0, "Pause between looks for new events.", lowest=0.01, highest=3600, flat_name="webhook_look_seconds"
    )
    probe_seconds: float = setting(
        5.0, "Pause between probes of one worker.", lowest=0.05, highest=3600, flat_name="probe_seconds"
    )
    probe_timeout_seconds: float = setting(
        2.0, "How long a probe waits.", lowest=0.05, highest=25, flat_name="probe_timeout_seconds"
    )
    probe_failures_max: int = setting(
        3,
        "Failed probes in a row after which a worker counts as unhealthy.",
        lowest=1,
        highest=1000,
        flat_name="probe_failures_max",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """How workers are launched for the actions that ask for it; the profiles are in docs/launchers.md."""

    slots: int = setting(
        10, "Launched workers at once, of profiles that do not say.", lowest=1, highest=10_000, flat_name="launch_slots"
    )
    poll_seconds: float = setting(
        1.0,
        "The longest wait before queued work is launched.",
        lowest=0.05,
        highest=300,
        flat_name="launch_poll_seconds",
    )
    describe_seconds: float = setting(
        10.0,
        "How often the platform is asked about a worker that has not attached.",
        lowest=0.1,
        highest=3600,
        flat_name="launch_describe_seconds",
    )
    factories: tuple[str, ...] = setting(
        (),
        "Launchers `module:factory` that actions may name, comma-separated; ENV local allows any.",
        flat_name="launch_factories",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a process was told to do; contradictions are refused when it is made."""

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
    launchers: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False, repr=False)
    """Launch profiles by name, from `[launchers.NAME]` in the file and from nowhere else; see docs/launchers.md."""

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
        """A carrier without an address would be found out only by the first wake-up."""
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
        """Read the settings of this process; `overrides` go by flat name, as `lease_seconds=5`.

        An override of `None` counts as not given. Without `toml_path`, HOLDFAST_CONFIG names the file; else a
        holdfast.toml in the current directory is read if there is one.
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
        """Tell whether this is somebody's own machine."""
        return self.env == LOCAL

    @property
    def internal_address(self) -> tuple[str, int] | None:
        """Where workers are served apart from operators, if they are."""
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
}


@cache
def options() -> tuple[Option, ...]:
    """Give the table of all settings."""
    return options_of(Settings) + tuple(
        option for name, kind in _SECTIONS.items() for option in options_of(kind, section=name)
    )


def reference() -> str:
    """Write docs/settings.md."""
    parts = [_PREAMBLE, "## General\n", table_of(option for option in options() if not option.section)]
    for name, kind in _SECTIONS.items():
        about = (kind.__doc__ or "").strip()
        parts += [f"## {name}\n", f"{about}\n", table_of(o for o in options() if o.section == name)]
    return "\n".join(parts)


_PREAMBLE = """\
# Settings

<!-- Generated by tools/generate_docs.py from src/holdfast/settings.py; change it there. -->

From weakest to strongest: the defaults below, `holdfast.toml`, environment variables, arguments.
`HOLDFAST_CONFIG` names the TOML file; without it, a `holdfast.toml` in the current directory is read if there
is one. A setting that is unknown, malformed or contradicts another is refused at start, with a suggestion.

Arguments (`Settings.load(os.environ, lease_seconds=5)`) are named like the variable, in lower case and
without its prefix. Where a variable has several names, the first one that is set counts. `ENV=local` is
understood as `HOLDFAST_ENV=local`; any other value of `ENV` means production. An empty
variable counts as not set.
"""


def _built(values: Mapping[str, Any]) -> Settings:
    parts: dict[str, dict[str, Any]] = {name: {} for name in _SECTIONS}
    top: dict[str, Any] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        (parts[section] if section else top)[name] = value
    return Settings(**top, **{name: kind(**parts[name]) for name, kind in _SECTIONS.items()})
