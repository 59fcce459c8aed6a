"""Resolve the database: `HOLDFAST_URL`, or the embedded one, and only if that was requested.

A forgotten URL in production is an error, never a private database without backups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import InvalidSettings
from holdfast.net.server_url import database_url, is_server
from holdfast.settings.settings import Settings
from holdfast.store.embedded.server import default_home, start


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseLocation:
    """A database URL, and how to release the server behind it."""

    url: str
    is_embedded: bool
    close: Callable[[], None]
    home: Path | None = None
    """The home directory of the embedded database."""


def resolve_database(settings: Settings, url: str | None = None) -> DatabaseLocation:
    """Resolve the database of these settings, starting the embedded one if it is meant. Blocks while it starts."""
    chosen = url or settings.url
    if is_server(chosen):
        raise InvalidSettings(
            "This needs the database itself, and the URL is that of a server.",
            code="database_url_needed",
            advice="Give --url postgresql://…, or set HOLDFAST_URL to one; `holdfast work` and `attach` take either.",
        )
    if chosen:
        return DatabaseLocation(url=database_url(chosen), is_embedded=False, close=lambda: None)
    if settings.home is None and settings.env != "local":
        raise InvalidSettings(
            "No database is configured.",
            code="database_not_configured",
            advice="Set HOLDFAST_URL, or HOLDFAST_ENV=local (or HOLDFAST_HOME) for the embedded database.",
        )
    server = start(settings.home or default_home())
    return DatabaseLocation(url=server.url, is_embedded=True, close=server.close, home=server.home)
