"""Addresses: where a server may listen, and which clients share a login throttle."""

from __future__ import annotations

import ipaddress

from holdfast.errors import InvalidSettings
from holdfast.net.server_url import is_loopback
from holdfast.settings.settings import Settings


def require_safe_address(settings: Settings) -> None:
    """Refuse to expose development sign-in to a network."""
    exposed = [host for host in hosts_of(settings) if not is_loopback(host)]
    if settings.is_local and exposed:
        raise InvalidSettings(
            f"ENV is local and the server would listen on {exposed[0]}: every client that can reach it would "
            "be an administrator.",
            code="local_beyond_loopback",
            advice="Bind to 127.0.0.1, or set HOLDFAST_ENV=production.",
        )


def require_some_identity(settings: Settings, *, has_identity: bool) -> None:
    """Refuse to listen on a network if no caller could ever authenticate."""
    exposed = [host for host in hosts_of(settings) if not is_loopback(host)]
    if exposed and not has_identity:
        raise InvalidSettings(
            f"The server would listen on {exposed[0]}, but there is neither an API token nor an identity provider.",
            code="no_authentication",
            advice="Create a token (`holdfast token create NAME --role operator`), or configure an issuer "
            "(HOLDFAST_GOOGLE_CLIENT_IDS or HOLDFAST_OIDC_ISSUER), or bind to 127.0.0.1.",
        )


def hosts_of(settings: Settings) -> list[str]:
    """Return every address the server listens on."""
    return [settings.host, *([settings.internal_address[0]] if settings.internal_address else [])]


def host_in(header: str) -> str:
    """Return the host of a Host or Origin header, without its port."""
    authority = header.rpartition("://")[2]
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def throttle_key(peer: str) -> str:
    """Return the key for counting failed logins: an IPv4 address, or an IPv6 /64 network, usually one customer's."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
