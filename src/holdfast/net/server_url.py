"""URL of a Holdfast server, and the rule that a token is sent only over https or to this machine. Pure.

Commands, workers and launched workers all use these functions, so that all of them follow the same rule.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from urllib.parse import urlsplit

from holdfast.errors import InvalidSettings

SCHEMES = ("http://", "https://")


def is_server(url: str | None) -> bool:
    """Return whether a URL leads to a server rather than to a database."""
    return url is not None and url.lower().startswith(SCHEMES)


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Return whether a name or address can only mean this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_here(url: str) -> bool:
    """Return whether a URL leads to this machine."""
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def require_secure_url(url: str) -> None:
    """Refuse to send a token over an unencrypted connection to another machine."""
    if not (url.lower().startswith("https://") or is_here(url)):
        raise InvalidSettings(
            "A token may only be sent over https, or to this machine.",
            code="insecure_server",
            advice="Use the https:// URL of the server.",
        )


def database_url(url: str) -> str:
    """Return the URL as the driver accepts it, without the driver suffix that SQLAlchemy puts after a plus sign."""
    scheme, is_url, rest = url.partition("://")
    name = scheme.partition("+")[0]
    if is_url and name in ("postgresql", "postgres"):
        return f"{name}://{rest}"
    shown = f"{scheme[:40]}://…" if is_url else repr(url[:40])
    raise InvalidSettings(
        f"{shown} is not the URL of a PostgreSQL database.",
        code="invalid_url",
        advice="Write postgresql://user:password@host:5432/name, or the http(s):// URL of a Holdfast server.",
        setting="url",
    )
