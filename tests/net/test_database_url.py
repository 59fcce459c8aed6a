"""URLs as people have them: those of SQLAlchemy are understood, what is no PostgreSQL is said."""

from __future__ import annotations

import pytest

from holdfast.errors import InvalidSettings
from holdfast.net.server_url import database_url
from holdfast.settings.settings import Settings
from holdfast.store.errors import without_password
from holdfast.store.resolve import resolve_database


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+asyncpg", "postgresql+psycopg", "postgres+x"])
def test_a_driver_behind_a_plus_sign_is_left_out(scheme):
    place = resolve_database(Settings(url=f"{scheme}://me:secret@db.example.com/shop"))
    assert place.url == f"{scheme.partition('+')[0]}://me:secret@db.example.com/shop"


@pytest.mark.parametrize("url", ["mysql://me:secret@db/shop", "sqlite:///x.db", "foo", "postgresql:shop"])
def test_what_is_no_postgresql_is_said_without_a_password(url):
    with pytest.raises(InvalidSettings) as refused:
        database_url(url)
    assert refused.value.code == "invalid_url" and "postgresql://" in refused.value.advice
    assert "secret" not in str(refused.value)


def test_a_shown_url_says_where_the_server_is_and_no_password():
    shown = without_password("postgresql://me:secret@/shop?host=/run/pg&password=secret&port=5433&sslpassword=secret")
    assert shown == "postgresql://me@/shop?host=/run/pg&port=5433"
