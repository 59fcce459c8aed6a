"""Who asks: the caller of a request, and what each route demands of one.

Today a caller is known in one way: `x-dev-user`, on a machine of one's own. It counts only where the server runs with
ENV local, is bound to loopback, is asked from loopback under a loopback name, and nothing was forwarded; elsewhere the
header is ignored. Tokens and sign-in will be further ways to make a `Caller`; routes need not change.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from starlette.requests import Request

from holdfast.errors import Forbidden, InvalidSettings, Unauthorized
from holdfast.settings import Settings
from holdfast.store.catalog import DEFAULT_TENANT_ID

DEV_HEADER = "x-dev-user"
FORWARDING = ("forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip", "fly-client-ip")
FORWARDING_PREFIX = "x-forwarded"

_DEV_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}")


class Access(StrEnum):
    """What a route demands of its caller."""

    PUBLIC = "public"
    VIEWER = "viewer"
    OPERATOR = "operator"
    WORKER = "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Somebody known: their name in the audit log, their tenant, and what they may do."""

    actor: str
    tenant_id: int
    may: frozenset[Access]


_EVERYTHING = frozenset(Access)


def authenticate(request: Request, settings: Settings) -> Caller | None:
    """The caller, or nobody."""
    return _developer(request, settings)


def authorize(caller: Caller | None, access: Access) -> Caller:
    """The caller, if they may; `Unauthorized` without one, `Forbidden` for one who may not."""
    if caller is None:
        raise Unauthorized(
            "This needs somebody who signed in.",
            advice="With ENV=local, on this machine: send the header `x-dev-user: NAME`.",
        )
    if access not in caller.may:
        raise Forbidden(f"{caller.actor} may not do this.", needs=access.value)
    return caller


def _developer(request: Request, settings: Settings) -> Caller | None:
    name = request.headers.get(DEV_HEADER)
    if name is None or not settings.is_local or not _DEV_NAME.fullmatch(name):
        return None
    headers = request.headers.keys()
    is_forwarded = any(header in FORWARDING or header.startswith(FORWARDING_PREFIX) for header in headers)
    peer = request.client.host if request.client is not None else ""
    asked = _host_of(request.headers.get("host", ""))
    if is_forwarded or not (is_loopback(settings.host) and is_loopback(peer) and is_loopback(asked)):
        return None
    return Caller(actor=f"dev:{name}", tenant_id=DEFAULT_TENANT_ID, may=_EVERYTHING)


def require_safe_address(settings: Settings) -> None:
    """Refuse to offer development sign-in to a network."""
    if settings.is_local and not is_loopback(settings.host):
        raise InvalidSettings(
            f"ENV is local and HOLDFAST_HOST is {settings.host}: anybody who can reach it would be an administrator.",
            code="local_beyond_loopback",
            advice="Bind to 127.0.0.1, or set HOLDFAST_ENV=production.",
        )


@lru_cache(maxsize=1_024)
def is_loopback(host: str) -> bool:
    """Whether a name or address can only mean this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(header: str) -> str:
    """The host of a Host header without its port. Another name than loopback's means a page of somebody else asks."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]
