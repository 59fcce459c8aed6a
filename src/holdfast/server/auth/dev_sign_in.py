"""Sign-in for development: `x-dev-user: anna` makes the caller `dev:anna`, who may do everything.

It works only if the server runs with ENV local, is bound to loopback, receives the request on and from loopback under a
loopback host name, and the request was neither forwarded nor sent by another site's page. Otherwise the header is
ignored.
"""

from __future__ import annotations

import re

from starlette.requests import Request

from holdfast.core.identity.access import EVERYTHING
from holdfast.net.server_url import is_loopback
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.client_address import host_in
from holdfast.settings.settings import Settings
from holdfast.store.catalog import DEFAULT_TENANT_ID

DEV_HEADER = "x-dev-user"
FORWARDING = (
    "forwarded",
    "via",
    "cdn-loop",
    "cf-connecting-ip",
    "client-ip",
    "fly-client-ip",
    "true-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-original-host",
    "x-original-url",
    "x-real-ip",
    "x-rewrite-url",
)
FORWARDING_PREFIXES = ("x-forwarded", "x-envoy-")
"""Headers that proxies add. A proxy that adds none of them cannot be distinguished from a local program."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}")


def developer(request: Request, settings: Settings) -> Caller | None:
    """Return the developer who sent the request, if every condition holds."""
    users = request.headers.getlist(DEV_HEADER)
    if not settings.is_local or len(users) != 1 or not _NAME.fullmatch(users[0]):
        return None
    if not (is_loopback(settings.host) and _is_at_home(request)) or _is_forwarded(request) or _is_a_page(request):
        return None
    return Caller(actor=f"dev:{users[0]}", tenant_id=DEFAULT_TENANT_ID, may=EVERYTHING)


def _is_at_home(request: Request) -> bool:
    """Return whether both ends and the host name are this machine's. Another name indicates DNS rebinding."""
    ends = (request.client.host if request.client else "", (request.scope.get("server") or ("",))[0])
    names = request.headers.getlist("host")
    return all(map(is_loopback, ends)) and len(names) == 1 and is_loopback(host_in(names[0]))


def _is_forwarded(request: Request) -> bool:
    headers = request.headers.keys()
    return any(header in FORWARDING or header.startswith(FORWARDING_PREFIXES) for header in headers)


def _is_a_page(request: Request) -> bool:
    """Return whether another site's page, open in this machine's browser, sent the request."""
    origins = request.headers.getlist("origin")
    return any(not is_loopback(host_in(origin)) for origin in origins) or request.headers.get(
        "sec-fetch-site", "none"
    ) not in ("none", "same-origin")
