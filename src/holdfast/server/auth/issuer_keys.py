"""The public keys of one issuer: fetched in a thread, cached, renewed when they are old or a token names a new one.

At most one fetch per minute, whatever arrives. A fetch that fails or returns no usable key changes nothing: the cached
keys stay valid while the issuer's endpoint is down. The URL comes from the settings alone; no redirect is followed.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import HTTPRedirectHandler, Request, build_opener

import jwt

from holdfast.errors import Unavailable

log = logging.getLogger("holdfast.server")

OLD_SECONDS = 3600.0
PAUSE_SECONDS = 60.0
FETCH_SECONDS = 5.0
BODY_BYTES_MAX = 256 * 1024
KEYS_MAX = 100
RSA_BITS_MIN = 2048

Keys = Mapping[tuple[str, str], Any]
"""Keys by id and algorithm: a key can be used with its own algorithm only."""


class KeySet:
    """The keys at one URL."""

    def __init__(self, url: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._url, self._clock = url, clock
        self._keys: Keys = {}
        self._fetched_at = self._asked_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        # A dedicated thread: people can sign in however busy the process's other threads are.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-keys")

    async def find(self, kid: str, algorithm: str) -> Any | None:
        """Return the key of this id and algorithm; raise `Unavailable` if no keys could be fetched so far."""
        at, found = self._clock(), self._keys.get((kid, algorithm))
        if (found is None or at - self._fetched_at >= OLD_SECONDS) and at - self._asked_at >= PAUSE_SECONDS:
            self._asked_at = at
            self._fetching = asyncio.create_task(self._renew(), name="holdfast-keys")
        if found is not None:
            return found
        if self._fetching is not None:
            await asyncio.shield(self._fetching)
        if not self._keys:
            raise Unavailable(
                "The keys of the identity provider cannot be fetched.",
                code="identity_provider_unavailable",
                advice="Try again in a minute; the server's log has the cause.",
            )
        return self._keys.get((kid, algorithm))

    async def close(self) -> None:
        """Cancel a running fetch and end the thread."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _renew(self) -> None:
        try:
            self._keys = await asyncio.get_running_loop().run_in_executor(self._thread, fetch_keys, self._url)
            self._fetched_at = self._clock()
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
            log.warning("the keys at %s cannot be fetched, %d stay in use: %s", self._url, len(self._keys), error)


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


def fetch_keys(url: str) -> Keys:
    """Fetch the usable keys at a URL; raise `OSError` or `ValueError` if there are none."""
    until = time.monotonic() + FETCH_SECONDS
    request = Request(url, headers={"accept": "application/json", "user-agent": "holdfast"})
    body = bytearray()
    with build_opener(_NoRedirect).open(request, timeout=FETCH_SECONDS) as answer:
        while part := answer.read1(65536):
            body += part
            if len(body) > BODY_BYTES_MAX or time.monotonic() > until:
                raise ValueError("the response is too large or too slow")
    document = json.loads(body)
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("the response is not a set of keys")
    keys = dict(entry for key in listed[:KEYS_MAX] if (entry := _usable(key)) is not None)
    if not keys:
        raise ValueError("there is no usable key")
    return keys


def _usable(listed: Any) -> tuple[tuple[str, str], Any] | None:
    """Return a signing key of an accepted kind, with its id and algorithm."""
    if not isinstance(listed, dict) or not isinstance(kid := listed.get("kid"), str):
        return None
    match listed:
        case {"kty": "RSA"}:
            algorithm = "RS256"
        case {"kty": "EC", "crv": "P-256"}:
            algorithm = "ES256"
        case _:
            return None
    if listed.get("use", "sig") != "sig" or listed.get("alg", algorithm) != algorithm:
        return None
    try:
        key = jwt.PyJWK(listed, algorithm=algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    return ((kid, algorithm), key) if algorithm == "ES256" or key.key_size >= RSA_BITS_MIN else None
