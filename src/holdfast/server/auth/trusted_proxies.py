"""Proxies that an operator trusts to report the client's address. Used for rate limits of addresses only.

No authentication depends on an address: development sign-in checks the connection itself, whatever proxies are trusted.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request

from holdfast.errors import InvalidSettings
from holdfast.server.auth.client_address import host_in

HEADER = "x-forwarded-for"
HOPS_MAX = 32

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Proxies:
    """The networks of the trusted proxies."""

    networks: tuple[Network, ...] = ()

    @classmethod
    def of(cls, entries: Sequence[str]) -> Proxies:
        """Return the proxies that the settings name; raise `InvalidSettings` for an invalid network."""
        return cls(tuple(_network(entry) for entry in entries))

    def peer(self, request: Request) -> str:
        """Return the client's address: the connection's peer or, if that is a trusted proxy, the address it reports."""
        peer = request.client.host if request.client is not None else ""
        if not self.networks or not self._hold(_address(peer)):
            return peer
        named = ",".join(request.headers.getlist(HEADER)).rsplit(",", HOPS_MAX)
        for text in reversed(named[-HOPS_MAX:]):
            # Each proxy appends the address it saw; entries before an untrusted one may be forged.
            if (address := _address(text.strip())) is None:
                return peer
            peer = str(address)
            if not self._hold(address):
                return peer
        return peer

    def _hold(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self.networks)


def _address(text: str) -> Address | None:
    """Parse an address with or without a port; an IPv4 address mapped to IPv6 is returned as IPv4."""
    for spelling in (text, host_in(text)):
        try:
            found = ipaddress.ip_address(spelling)
        except ValueError:
            continue
        return getattr(found, "ipv4_mapped", None) or found
    return None


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise InvalidSettings(
            f"trusted_proxies names {text[:80]!r}, which is neither an address nor a network.",
            advice="Write them as 10.0.0.5 or 10.0.0.0/24, separated by commas.",
            setting="http.trusted_proxies",
        ) from None
