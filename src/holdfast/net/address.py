"""Egress rules: strict parsing of URLs, and a check of each address. Pure.

A user chose the URL, and the engine runs in a network where it may reach more than that user. So only plain http and
https are allowed, to permitted ports, to names of the public internet, and to addresses that are global after every
embedded address is unwrapped. Settings can allow more; that is the operator's decision.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from holdfast.errors import Invalid, InvalidSettings
from holdfast.settings.settings import EgressSettings

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

CODE = "url_not_allowed"
URL_CHARACTERS_MAX = 2_048
EVERY_PORT = "*"
PORTS = {"http": 80, "https": 443}
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMBER_AT_END = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_INNER = ("internal", "local", "localhost", "localdomain", "home.arpa", "lan", "intranet", "corp", "home", "private")
"""Top-level names that exist only inside private networks."""

_UNICAST_6 = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_RELAYS = ipaddress.IPv4Network("192.88.99.0/24")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTarget:
    """An allowed URL, split into the parts of a request; it is not parsed a second time."""

    scheme: str
    host: str
    port: int
    path: str
    address: Address | None
    """The host itself, if it is an address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressRules:
    """What an operator allows: networks and names beyond the public ones, ports, and a proxy for all requests."""

    networks: tuple[Network, ...] = ()
    names: frozenset[str] = frozenset()
    ports: frozenset[int] | None = frozenset(PORTS.values())
    """None: every port."""
    proxy: str | None = None

    @classmethod
    def of(cls, settings: EgressSettings) -> EgressRules:
        """Read the settings; raise `InvalidSettings` for an entry that is not a network, a name or a port."""
        networks, names = [], set()
        for entry in settings.allow:
            try:
                networks.append(ipaddress.ip_network(entry, strict=False))
            except ValueError:
                if not _NAME.fullmatch(entry.lower()) or _NUMBER_AT_END.fullmatch(entry.lower()):
                    raise _unreadable("egress_allow", entry, "a network, an address or a host name") from None
                names.add(entry.lower())
        return cls(
            networks=tuple(networks), names=frozenset(names), ports=_ports(settings.ports), proxy=_proxy(settings.proxy)
        )

    def refuse(self, address: Address) -> str:
        """Return why an address may not be requested, as a phrase; empty if it may."""
        meant = unwrapped(address)
        if any(meant in network or address in network for network in self.networks):
            return ""
        return "" if _is_public(meant) else f"{address} is not an address of the public internet"


def target_of(url: object, rules: EgressRules) -> RequestTarget:
    """Parse a URL; raise `Invalid` with code `url_not_allowed` if it may not be requested. Names are not resolved."""
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise refusal("It must be plain ASCII without spaces", "Write a name with other letters in its xn-- form.")
    if len(url) > URL_CHARACTERS_MAX:
        raise refusal(f"It is longer than {URL_CHARACTERS_MAX} characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise refusal(f"It cannot be read: {error}") from None
    if parts.scheme not in PORTS:
        raise refusal(f"Its scheme is {parts.scheme[:20]!r}", "Use https, or http.")
    if "@" in parts.netloc:
        raise refusal("It holds a user name or password", "Put credentials for the receiver into the path.")
    if "#" in url:
        raise refusal("It has a fragment, which is never sent")
    port = port if port is not None else PORTS[parts.scheme]
    if not port or (rules.ports is not None and port not in rules.ports):
        raise refusal(f"Port {port} is not allowed for outgoing requests", "See HOLDFAST_EGRESS_PORTS.")
    host = (parts.hostname or "").lower()
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    address = _literal(host, is_bracketed="[" in parts.netloc)
    if address is None:
        host = _name(host, rules)
    elif why := rules.refuse(address):
        raise refusal(why[:1].upper() + why[1:], "See HOLDFAST_EGRESS_ALLOW for networks of your own.")
    return RequestTarget(scheme=parts.scheme, host=host, port=port, path=path, address=address)


def unwrapped(address: Address) -> Address:
    """Return the IPv4 address inside an IPv6 one (v4-mapped, NAT64, 6to4), else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def refusal(why: str, advice: str = "") -> Invalid:
    """Build the error for a URL that may not be requested."""
    return Invalid(f"Requests to this URL are not allowed. {why}.", code=CODE, advice=advice)


def _is_public(address: Address) -> bool:
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        return address in _UNICAST_6
    return address not in _RELAYS


def _literal(host: str, *, is_bracketed: bool) -> Address | None:
    """Return the host as an address. Numbers that some resolvers accept, such as 2130706433 or 0x7f.1, are refused."""
    if is_bracketed or ":" in host:
        try:
            return ipaddress.IPv6Address(host if "%" not in host else "")
        except ValueError:
            raise refusal("Its host is not an IPv6 address") from None
    if not _NUMBER_AT_END.fullmatch(host.rstrip(".")):
        return None
    try:
        return ipaddress.IPv4Address(host)
    except ValueError:
        raise refusal("Its host is a number, but not a complete IPv4 address") from None


def _name(host: str, rules: EgressRules) -> str:
    """Return a name of the public internet, or an allowed one; refuse others."""
    host = host.removesuffix(".")
    if not _NAME.fullmatch(host) or len(host) > 253:
        raise refusal("It has no valid host name")
    if host in rules.names:
        return host
    if "." not in host or host.endswith(tuple(f".{name}" for name in _INNER)):
        raise refusal(f"{host} is a host name of a private network", "See HOLDFAST_EGRESS_ALLOW for names of your own.")
    return host


def _ports(text: str) -> frozenset[int] | None:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if EVERY_PORT in parts:
        return None
    for part in parts:
        if not (part.isascii() and part.isdigit() and 0 < int(part[:6]) < 65_536):
            raise _unreadable("egress_ports", part, f"a port from 1 to 65535, or {EVERY_PORT}")
    return frozenset(map(int, parts))


def _proxy(url: str | None) -> str | None:
    if url is not None and not re.fullmatch(r"https?://[^\s]+", url):
        raise InvalidSettings("egress_proxy must be a URL with http or https.", setting="egress.proxy")
    return url


def _unreadable(name: str, entry: str, wanted: str) -> InvalidSettings:
    return InvalidSettings(f"{name} has {entry[:80]!r}, which is not {wanted}.", setting=name)
