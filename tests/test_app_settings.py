"""What an app's code says about settings, beside what the process was told that runs it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.authoring.app_settings import settings_for
from holdfast.errors import InvalidSettings
from holdfast.settings.settings import RetrySettings, Settings, WorkerSettings

HERE, THERE = "postgresql://anna:secret@db.example/shop", "postgresql://anna:secret@db.example/other"


def test_without_settings_in_the_code_everything_is_as_told():
    assert hf.App("shop").own_settings is None
    assert settings_for(None, told := Settings(url=HERE)) is told


def test_code_that_names_the_database_counts_where_none_was_told():
    own = Settings(url=HERE, retry=RetrySettings(max_retries=7))
    told = Settings(env="local", tenant="a", unsafe=True, worker=WorkerSettings(slots=3))
    found = settings_for(own, told)
    assert (found.url, found.retry.max_retries) == (HERE, 7)
    assert (found.env, found.tenant, found.unsafe, found.worker.slots) == ("local", "a", True, 3)


SAME = [
    (Settings(url=HERE), Settings(url="postgres://worker@db.example:5432/shop?sslmode=require")),
    (Settings(url=HERE), Settings(url="postgresql://pooler:6432/x", direct_url=HERE)),
    (Settings(url="postgresql:///shop?host=/run/pg"), Settings(url="postgresql://anna@/shop?host=/run/pg&port=5432")),
    (Settings(url=HERE), Settings(url="https://server.example")),
    (Settings(home=Path("/srv/hf")), Settings(home=Path("/srv/hf"), url="postgresql:///holdfast?host=/srv/hf")),
    (Settings(worker=WorkerSettings(slots=3)), Settings(url=HERE)),
]
OTHER = [
    (Settings(url=HERE), Settings(url=THERE), "db.example/other"),
    (Settings(url=HERE), Settings(url="postgresql://db.example:5433/shop"), "HOLDFAST_URL"),
    (Settings(url=HERE), Settings(home=Path("/srv/hf")), "/srv/hf"),
    (Settings(home=Path("/srv/hf")), Settings(url=HERE), "/srv/hf"),
    (Settings(url="https://a.example"), Settings(url="https://b.example"), "a.example"),
    (Settings(url=HERE, tenant="a"), Settings(url=HERE, tenant="b"), "tenant a"),
]


@pytest.mark.parametrize(("own", "told"), SAME)
def test_the_same_database_is_known_however_it_is_written(own, told):
    assert settings_for(own, told) is told


@pytest.mark.parametrize(("own", "told", "says"), OTHER)
def test_code_that_means_another_database_or_tenant_is_refused(own, told, says):
    with pytest.raises(InvalidSettings) as refused:
        settings_for(own, told)
    assert (refused.value.code, says in str(refused.value)) == ("settings_differ", True)
    assert "secret" not in str(refused.value)


def test_what_does_not_count_is_named_with_its_variable(caplog):
    told = Settings(url=HERE, worker=WorkerSettings(slots=3))
    with caplog.at_level(logging.WARNING):
        assert settings_for(Settings(url=HERE, worker=WorkerSettings(slots=5), port=1), told) is told
        assert settings_for(Settings(url=HERE, worker=WorkerSettings(slots=3)), told) is told
    [said] = [record.getMessage() for record in caplog.records]
    assert "worker.slots" in said and "HOLDFAST_SLOTS" in said and "HOLDFAST_PORT" in said
