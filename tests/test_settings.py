"""Settings are read once, from four sources in a fixed order, and refused when they make no sense."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from holdfast.core.tasks.policy import RetryPolicy
from holdfast.core.values import bounds
from holdfast.errors import InvalidSettings
from holdfast.settings.settings import RetrySettings, Settings, WorkerSettings, options


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def a_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "some.toml"
    path.write_text(text)
    return path


def refusal(**environ: str) -> InvalidSettings:
    with pytest.raises(InvalidSettings) as caught:
        Settings.load(environ)
    return caught.value


def test_without_anything_the_defaults_hold():
    settings = Settings.load({})
    assert settings == Settings()
    assert (settings.env, settings.host, settings.port) == ("production", "127.0.0.1", 8787)
    assert (settings.worker.lease_seconds, settings.worker.heartbeat_seconds) == (10, 3)


def test_the_stronger_source_wins(tmp_path):
    path = a_file(tmp_path, "port = 1\n[worker]\nslots = 1\nprocesses = 1\nlease_seconds = 30\n")
    environ = {"HOLDFAST_SLOTS": "2", "HOLDFAST_PROCESSES": "2"}
    settings = Settings.load(environ, toml_path=path, processes=3)
    assert settings.port == 1
    assert settings.worker.lease_seconds == 30
    assert (settings.worker.slots, settings.worker.processes) == (2, 3)


def test_an_argument_of_none_is_not_given():
    assert Settings.load({"HOLDFAST_PORT": "9"}, port=None).port == 9


def test_a_file_in_the_current_directory_is_read(tmp_path):
    Path("holdfast.toml").write_text("port = 4\n[worker]\n")
    assert Settings.load({}).port == 4


def test_the_environment_names_the_file(tmp_path):
    path = a_file(tmp_path, "[auth]\ngoogle_client_ids = ['a', 'b']\n")
    assert Settings.load({"HOLDFAST_CONFIG": str(path)}).auth.google_client_ids == ("a", "b")


@pytest.mark.parametrize(
    ("name", "text", "key", "value"),
    [
        ("HOLDFAST_URL", "postgresql://x", "url", "postgresql://x"),
        ("HOLDFAST_HOME", "/data", "home", Path("/data")),
        ("HOLDFAST_ENV", "local", "env", "local"),
        ("ENV", "local", "env", "local"),
        ("ENV", "staging", "env", "production"),
        ("HOLDFAST_HEARTBEAT_SECONDS", "0.5", "worker.heartbeat_seconds", 0.5),
        ("HOLDFAST_RETRY_BASE_BACKOFF_SECS", "0.1", "retry.base_backoff_secs", 0.1),
        ("HOLDFAST_RETRY_ENABLED", "off", "retry.enabled", False),
        ("MAX_RETRIES", "1", "retry.max_retries", 1),
        ("REDIS_URL", "redis://a", "wake.redis_url", "redis://a"),
        ("TASK_TRACKING_REDIS_URL", "redis://b", "wake.redis_url", "redis://b"),
        ("EXECUTIONS_REDIS_KEY_PREFIX", "p", "wake.redis_key_prefix", "p"),
        ("IMPLEMENTATION_SQS_QUEUE_URL", "https://q", "wake.sqs_queue_url", "https://q"),
        ("TASK_DASHBOARD_GOOGLE_CLIENT_IDS", "a, b,", "auth.google_client_ids", ("a", "b")),
        ("HOLDFAST_SLOTS", "", "worker.slots", 100),
        ("HOLDFAST_PORT", "tcp://10.0.0.1:8787", "port", 8787),
    ],
)
def test_a_variable_sets_its_setting(name, text, key, value):
    found: object = Settings.load({name: text})
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value


def test_our_own_name_wins_over_an_alias():
    assert Settings.load({"MAX_RETRIES": "1", "HOLDFAST_MAX_RETRIES": "5"}).retry.max_retries == 5
    assert Settings.load({"ENV": "local", "HOLDFAST_ENV": "production"}).env == "production"


@pytest.mark.parametrize(
    "name",
    [
        "HOLDFAST_PG_BIN",
        "HOLDFAST_PG_USER",
        "HOLDFAST_FAILPOINT_SETTLE",
        "HOLDFAST_TEST_URL",
        "HOLDFAST_SERVICE_HOST",
        "OTHER",
    ],
)
def test_variables_of_others_are_left_alone(name):
    assert Settings.load({name: "x"}) == Settings()


def test_an_unknown_variable_is_refused_with_a_suggestion():
    assert refusal(HOLDFAST_LEASE_SECS="5").advice == "Did you mean HOLDFAST_LEASE_SECONDS?"


def test_an_unknown_key_or_argument_is_refused_with_a_suggestion(tmp_path):
    with pytest.raises(InvalidSettings, match=r"worker\.slots"):
        Settings.load({}, toml_path=a_file(tmp_path, "[worker]\nslot = 5\n"))
    with pytest.raises(InvalidSettings, match="lease_seconds"):
        Settings.load({}, lease_second=5)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("HOLDFAST_SLOTS", "many"),
        ("HOLDFAST_SLOTS", "0"),
        ("HOLDFAST_SLOTS", "1.5"),
        ("HOLDFAST_PORT", "70000"),
        ("HOLDFAST_ENV", "test"),
        ("HOLDFAST_LEASE_SECONDS", "nan"),
        ("HOLDFAST_LEASE_SECONDS", "inf"),
        ("HOLDFAST_RETRY_ENABLED", "perhaps"),
        ("HOLDFAST_RETRY_JITTER_FACTOR", "1"),
    ],
)
def test_a_malformed_value_is_refused_by_name(name, text):
    assert name in str(refusal(**{name: text}))


@pytest.mark.parametrize(
    "text",
    ["port = 'x", "port = true", "port = 1.5", "env = 1", f"[worker]\nlease_seconds = {10**400}", "url = 5"],
)
def test_a_malformed_file_is_refused(tmp_path, text):
    with pytest.raises(InvalidSettings):
        Settings.load({}, toml_path=a_file(tmp_path, text))


def test_a_missing_file_that_was_named_is_refused(tmp_path):
    with pytest.raises(InvalidSettings, match="cannot be read"):
        Settings.load({"HOLDFAST_CONFIG": str(tmp_path / "none.toml")})


def test_a_heartbeat_slower_than_a_third_of_the_lease_is_refused():
    refused = refusal(HOLDFAST_LEASE_SECONDS="6")
    assert refused.code == "heartbeat_too_slow"
    assert "HOLDFAST_HEARTBEAT_SECONDS to at most 2" in refused.advice
    with pytest.raises(InvalidSettings):
        Settings(worker=WorkerSettings(heartbeat_seconds=5))


def test_exactly_a_third_of_the_lease_is_accepted():
    assert Settings.load({}, lease_seconds=0.9, heartbeat_seconds=0.3).worker.lease_seconds == 0.9


def test_secrets_do_not_show():
    settings = Settings.load({"HOLDFAST_URL": "postgresql://u:hunter2@h", "REDIS_URL": "redis://:hunter2@h"})
    assert "hunter2" not in repr(settings)


def test_every_setting_has_one_name_of_its_own():
    names = [name for option in options() for name in (option.variable, *option.aliases)]
    assert len(names) == len(set(names))
    assert all(option.doc.endswith(".") for option in options())


def test_the_defaults_agree_with_the_core():
    policy = RetryPolicy()
    renamed = {"enabled": "is_enabled", "unclassified": "retry_unclassified"}
    for field in dataclasses.fields(RetrySettings):
        if field.name != "max_retries":  # unset: it depends on the action
            assert getattr(Settings().retry, field.name) == getattr(policy, renamed.get(field.name, field.name))
    assert Settings().limits.input_bytes_max == bounds.INPUT_BYTES_MAX
    assert Settings().limits.output_bytes_max == bounds.OUTPUT_BYTES_MAX
