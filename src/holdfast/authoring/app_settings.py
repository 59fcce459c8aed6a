"""Reconciliation of an app's own settings (`App("shop", settings=…)`) with those of the process that runs it.

A process without a configured database uses every setting that the code changes from its default. A process with a
configured database uses its own settings and logs which settings of the code do not apply. Code that names another
database or tenant is refused, because such a worker would wait for work that its clients submit elsewhere.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from holdfast.errors import InvalidSettings
from holdfast.net.server_url import is_server
from holdfast.settings.option import Option
from holdfast.settings.settings import Settings, options
from holdfast.store.errors import without_password

log = logging.getLogger("holdfast.settings")

_COMPARED = {"url", "direct_url", "home", "tenant"}


def settings_for(own: Settings | None, configured: Settings) -> Settings:
    """Return the settings of a process configured with `configured`, for an app whose code passes `own`."""
    if own is None or own == configured:
        return configured
    if configured.url is None and configured.home is None:
        return _laid_over(configured, own)
    _require_same_place(own, configured)
    ignored = [
        option
        for option in _said(own)
        if option.key not in _COMPARED and _value(option, own) != _value(option, configured)
    ]
    if ignored:
        log.warning(
            "the app's code sets %s, which is ignored: the database of this process is configured outside "
            "the code, so all settings are read from there; set %s there",
            ", ".join(option.key for option in ignored),
            ", ".join(option.variable for option in ignored),
        )
    return configured


def _require_same_place(own: Settings, configured: Settings) -> None:
    if own.tenant not in (configured.tenant, Settings().tenant):
        raise InvalidSettings(
            f"The app's code names the tenant {own.tenant}, but this process is configured for {configured.tenant}.",
            code="settings_differ",
            advice="Set HOLDFAST_TENANT to the same tenant, or remove it from the code.",
            setting="tenant",
        )
    if not _is_same_database(own, configured):
        theirs = without_password(own.url) if own.url is not None else f"in {own.home}"
        ours = without_password(configured.url) if configured.url is not None else f"in {configured.home}"
        raise InvalidSettings(
            f"The app's code names another database than HOLDFAST_URL or --url: {theirs}, not {ours}.",
            code="settings_differ",
            advice="Configure only one of them: in code, `hf.Settings.load(os.environ, …)` reads the environment.",
            setting="url",
        )


def _is_same_database(own: Settings, configured: Settings) -> bool:
    if own.url is None:
        return own.home is None or own.home == configured.home
    if configured.url is None:
        return False
    if is_server(own.url) or is_server(configured.url):
        # A server does not reveal the database behind it; only two servers can be compared.
        return is_server(own.url) != is_server(configured.url) or own.url.rstrip("/") == configured.url.rstrip("/")
    # One of the URLs may lead through a connection pooler.
    known = {_address(url) for url in (configured.url, configured.direct_url) if url is not None}
    return any(_address(url) in known for url in (own.url, own.direct_url) if url is not None)


def _address(url: str) -> tuple[str, ...]:
    """Return the location of a database, independent of the user and the spelling of the URL."""
    try:
        parts = urlsplit(url)
        query_args = parse_qs(parts.query)
        host = query_args.get("host", [parts.hostname or ""])[0]
        port = query_args.get("port", [str(parts.port or 5432)])[0]
    except ValueError:
        return (url,)
    return host, port, query_args.get("dbname", [unquote(parts.path).strip("/")])[0]


def _laid_over(configured: Settings, own: Settings) -> Settings:
    said: dict[str, dict[str, Any]] = {}
    for option in _said(own):
        said.setdefault(option.section, {})[option.field] = _value(option, own)
    top = said.pop("", {})
    sections = {name: replace(getattr(configured, name), **values) for name, values in said.items()}
    return replace(configured, **top, **sections, launchers=own.launchers or configured.launchers)


def _said(own: Settings) -> list[Option]:
    """Return the options that the code sets. A value equal to its default counts as not set."""
    return [option for option in options() if _value(option, own) != option.default]


def _value(option: Option, settings: Settings) -> Any:
    return getattr(getattr(settings, option.section) if option.section else settings, option.field)
