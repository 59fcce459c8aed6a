"""Sections of the settings: workers, loops, retries, limits, wake-ups, HTTP, sign-in, egress, webhooks and launchers.

Each field declares its name, its default, its bounds and its meaning; `settings` combines them.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.settings.option import setting

POSTGRES, SQS, REDIS = "postgres", "sqs", "redis"
TEXT, JSON = "text", "json"
_DAY_SECONDS = 24 * 60 * 60
_MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How workers claim tasks, renew leases and stop."""

    lease_seconds: float = setting(10.0, "How long a lease lasts without a heartbeat.", lowest=0.3, highest=3600)
    heartbeat_seconds: float = setting(
        3.0, "Interval between lease renewals; at most a third of lease_seconds.", lowest=0.1, highest=1200
    )
    slots: int = setting(100, "Attempts that one worker process runs concurrently.", lowest=1, highest=100_000)
    processes: int = setting(1, "Worker processes under one parent.", lowest=1, highest=1024)
    poll_seconds: float = setting(
        1.0, "Maximum interval between polls for work when no wake-up arrives.", lowest=0.01, highest=300
    )
    shutdown_seconds: float = setting(
        30.0, "How long a stopping worker waits for its attempts to finish.", highest=86400
    )
    cancel_grace_seconds: float = setting(
        10.0, "How long a canceled or timed-out attempt may clean up before it is forced.", highest=86400
    )
    launch_seconds: float = setting(
        120.0,
        "How long a launched worker may take to attach before it counts as lost.",
        lowest=1,
        highest=86400,
    )
    probe_url: str | None = setting(None, "Health-check URL of this worker, which servers probe.", kind=str)
    timeout_seconds: float | None = setting(
        None,
        "Execution timeout of actions that set none. Unset: no timeout.",
        kind=float,
        lowest=0.001,
        highest=10 * 365 * _DAY_SECONDS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """How often the repair passes run, and how long history is kept."""

    reap_seconds: float = setting(1.0, "Interval between passes over expired leases.", lowest=0.01, highest=3600)
    reconcile_seconds: float = setting(
        0.5, "Interval between passes over due retries and delayed tasks.", lowest=0.01, highest=3600
    )
    sweep_seconds: float = setting(
        1.0, "Interval between passes over dead letters and campaigns.", lowest=0.01, highest=3600
    )
    schedule_seconds: float = setting(1.0, "Interval between passes over schedules.", lowest=0.01, highest=3600)
    vacuum_seconds: float = setting(1.0, "Interval between vacuums of the live table.", lowest=0.1, highest=86400)
    retention_days: float = setting(30.0, "How long completed work is kept.", lowest=0.01, highest=36500)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    """The defaults of every retry policy."""

    enabled: bool = setting(True, "Whether failures are retried at all.", flat_name="retry_enabled")
    max_retries: int | None = setting(
        None,
        "Retries after the first attempt of a task. Unset: 3, and 1 for actions with a launcher.",
        kind=int,
        highest=10_000,
        aliases=("MAX_RETRIES",),
    )
    max_losses: int = setting(3, "Retries after lost attempts of a task.", highest=10_000)
    unclassified: bool = setting(
        False,
        "Whether failures that no rule, exception type, code or message pattern matches are retried too.",
        flat_name="retry_unclassified",
    )
    base_backoff_secs: float = setting(
        1.0, "Backoff before the first retry.", highest=30 * _DAY_SECONDS, flat_name="retry_base_backoff_secs"
    )
    max_backoff_secs: float = setting(
        300.0,
        "Maximum backoff, before jitter.",
        highest=30 * _DAY_SECONDS,
        flat_name="retry_max_backoff_secs",
    )
    backoff_multiplier: float = setting(
        2.0,
        "Factor by which the backoff grows with each retry.",
        lowest=1,
        highest=1000,
        flat_name="retry_backoff_multiplier",
    )
    jitter_factor: float = setting(
        0.2, "Random spread of the backoff, as a fraction of it.", highest=0.999, flat_name="retry_jitter_factor"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """The largest accepted inputs and outputs."""

    input_bytes_max: int = setting(
        _MEBIBYTE, "Maximum size of the encoded input of a task.", lowest=1, highest=256 * _MEBIBYTE
    )
    output_bytes_max: int = setting(
        8 * _MEBIBYTE, "Maximum size of the encoded output of a task.", lowest=1, highest=256 * _MEBIBYTE
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeSettings:
    """What carries wake-ups. `{queue}` in an address stands for the name of the task's queue."""

    over: str = setting(
        POSTGRES,
        "Carrier of wake-ups to workers. Every carrier except postgres also needs `holdfast wake on`, once.",
        choices=(POSTGRES, SQS, REDIS),
        takes_reference=True,
        flat_name="wake",
    )
    address: str | None = setting(
        None,
        "Address of a custom carrier, passed to its factory.",
        kind=str,
        is_secret=True,
        flat_name="wake_address",
    )
    redis_url: str | None = setting(
        None,
        "URL of the Redis server for wake-ups.",
        kind=str,
        is_secret=True,
        aliases=("REDIS_URL", "TASK_TRACKING_REDIS_URL"),
    )
    redis_key_prefix: str = setting(
        "holdfast", "Prefix of Redis keys; the stream is PREFIX:wake.", aliases=("EXECUTIONS_REDIS_KEY_PREFIX",)
    )
    sqs_queue_url: str | None = setting(
        None, "URL of the SQS queue for wake-ups.", kind=str, aliases=("IMPLEMENTATION_SQS_QUEUE_URL",)
    )
    sqs_dead_letter_url: str | None = setting(
        None, "URL of the dead-letter queue of that queue. Hints in it are sent again while their task waits.", kind=str
    )
    visibility_seconds: float = setting(
        30.0,
        "How long a received hint is hidden from other workers. Renewed after a third of it while the task waits.",
        lowest=1,
        highest=43200,
    )
    hints_max: int = setting(
        100, "Maximum outstanding hints per queue. `holdfast wake on` stores the value.", lowest=1, highest=100_000
    )
    resend_seconds: float = setting(
        30.0,
        "Delay before a hint is sent again while its task still waits. It doubles each time.",
        lowest=0.05,
        highest=86400,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Rate limits of the server per caller, per tenant, and per address of unauthenticated requests; workers are
    exempt.
    """

    peer_requests_per_second: float = setting(
        500.0, "Sustained rate of unauthenticated requests from one address.", lowest=0.1, highest=1e6
    )
    peer_requests_burst: int = setting(
        1000, "Burst of unauthenticated requests from one address.", lowest=1, highest=1_000_000
    )
    caller_requests_per_second: float = setting(200.0, "Sustained request rate of one caller.", lowest=0.1, highest=1e6)
    caller_requests_burst: int = setting(400, "Burst of requests of one caller.", lowest=1, highest=1_000_000)
    tenant_requests_per_second: float = setting(500.0, "Sustained request rate of one tenant.", lowest=0.1, highest=1e6)
    tenant_requests_burst: int = setting(1000, "Burst of requests of one tenant.", lowest=1, highest=1_000_000)
    caller_streams_max: int = setting(
        1024,
        "Event streams and long polls for an end that one caller may have open on one server.",
        lowest=1,
        highest=1_000_000,
    )
    tenant_streams_max: int = setting(
        3072,
        "Event streams and long polls that one tenant may have open on one server. A server accepts 4096 connections.",
        lowest=1,
        highest=1_000_000,
    )
    trusted_proxies: tuple[str, ...] = setting(
        (),
        "Addresses and networks of trusted proxies, comma-separated. Rate limits use the client address in "
        "their `X-Forwarded-For`.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthSettings:
    """Who may sign in."""

    google_client_ids: tuple[str, ...] = setting(
        (),
        "Accepted audiences of Google ID tokens, comma-separated. Setting it enables sign-in with Google for members.",
        aliases=("TASK_DASHBOARD_GOOGLE_CLIENT_IDS",),
    )
    google_jwks_url: str = setting("https://www.googleapis.com/oauth2/v3/certs", "URL of Google's signing keys.")
    oidc_issuer: str | None = setting(
        None, "Another issuer of ID tokens, exactly as in the `iss` claim of its tokens.", kind=str
    )
    oidc_audiences: tuple[str, ...] = setting((), "Accepted audiences of its ID tokens, comma-separated.")
    oidc_jwks_url: str | None = setting(
        None, "URL of its signing keys: the `jwks_uri` of its discovery document.", kind=str
    )
    oidc_hd: tuple[str, ...] = setting(
        (), "Hosted domains (`hd`) whose members may sign in, comma-separated. Unset: only membership is checked."
    )
    token_cache_seconds: float = setting(
        5.0, "How long a verified token is cached before it is looked up again.", highest=60
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressSettings:
    """Where the engine may send requests on behalf of users: webhooks and probes."""

    allow: tuple[str, ...] = setting(
        (),
        "Non-public networks, addresses and host names that outgoing requests may reach, comma-separated.",
        flat_name="egress_allow",
    )
    ports: str = setting(
        "80,443,8080,8443", "Ports that outgoing requests may use; `*` allows every port.", flat_name="egress_ports"
    )
    proxy: str | None = setting(
        None,
        "Proxy for all such requests. The proxy resolves host names, so it must refuse private addresses itself.",
        kind=str,
        is_secret=True,
        flat_name="egress_proxy",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """How events are delivered, and workers probed."""

    timeout_seconds: float = setting(
        10.0, "Timeout for the response of a receiver.", lowest=0.05, highest=25, flat_name="webhook_timeout_seconds"
    )
    failures_max: int = setting(
        20,
        "Consecutive failed deliveries of one event after which its webhook is paused.",
        lowest=1,
        highest=10_000,
        flat_name="webhook_failures_max",
    )
    look_seconds: float = setting(
        1.0, "Interval between polls for new events.", lowest=0.01, highest=3600, flat_name="webhook_look_seconds"
    )
    reporters: tuple[str, ...] = setting(
        (),
        "Reporters (`module:factory`) that webhooks may name, comma-separated. With ENV=local, any.",
        flat_name="reporters",
    )
    probe_seconds: float = setting(
        5.0, "Interval between probes of one worker.", lowest=0.05, highest=3600, flat_name="probe_seconds"
    )
    probe_timeout_seconds: float = setting(
        2.0, "Timeout of a probe.", lowest=0.05, highest=25, flat_name="probe_timeout_seconds"
    )
    probe_failures_max: int = setting(
        3,
        "Consecutive failed probes after which a worker counts as unhealthy.",
        lowest=1,
        highest=1000,
        flat_name="probe_failures_max",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """How workers are launched for actions with a launcher; the profiles are in docs/launchers.md."""

    slots: int = setting(
        10,
        "Concurrent launched workers of a profile that does not set `slots`.",
        lowest=1,
        highest=10_000,
        flat_name="launch_slots",
    )
    poll_seconds: float = setting(
        1.0,
        "Maximum delay before a worker is launched for queued work.",
        lowest=0.05,
        highest=300,
        flat_name="launch_poll_seconds",
    )
    describe_seconds: float = setting(
        10.0,
        "Interval between checks with the platform for a worker that has not attached.",
        lowest=0.1,
        highest=3600,
        flat_name="launch_describe_seconds",
    )
    factories: tuple[str, ...] = setting(
        (),
        "Launchers (`module:factory`) that actions may name, comma-separated. With ENV=local, any.",
        flat_name="launch_factories",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What Holdfast's commands log to stderr, and how. An app that sets up logging itself keeps its own set-up."""

    level: str = setting(
        "info",
        "Minimum level of logged messages.",
        choices=("debug", "info", "warning", "error"),
        flat_name="log_level",
    )
    format: str = setting(
        TEXT,
        "`text` for people, `json` for programs: one object per line.",
        choices=(TEXT, JSON),
        flat_name="log_format",
    )
