"""The authenticator: identifies the caller before anything else of a request is read, and records refusals.

A caller is identified by an API token, by an ID token of a member, by the capability token of one attempt, or, on a
developer's own machine, by name. If there is an `authorization` header, it alone decides: no other credential makes up
for a wrong one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256

from starlette.requests import Request

from holdfast.core.identity import api_token
from holdfast.core.identity.access import ROLES, UNPRIVILEGED, Access
from holdfast.core.identity.capability import PREFIX as CAPABILITY_PREFIX
from holdfast.engine.audit import Change, record
from holdfast.engine.engine import Engine
from holdfast.engine.identity.capabilities import Capabilities
from holdfast.engine.identity.members import find_membership
from holdfast.engine.identity.tokens import find_bearer, has_token, is_in_use
from holdfast.errors import Forbidden, Unauthorized
from holdfast.server.auth.caller import ANONYMOUS, Caller
from holdfast.server.auth.client_address import require_some_identity, throttle_key
from holdfast.server.auth.credential_cache import CredentialCache
from holdfast.server.auth.dev_sign_in import developer
from holdfast.server.auth.id_tokens import IdTokens
from holdfast.server.auth.login_throttle import LoginThrottle
from holdfast.server.auth.providers import providers_of
from holdfast.server.auth.trusted_proxies import Proxies

log = logging.getLogger("holdfast.server")

CREDENTIAL_CHARACTERS_MAX = 8 * 1024
DENIAL_SECONDS = 60.0
DENIALS_MAX = 10_000


class Authenticator:
    """Identifies callers. One per server; its memory only saves queries and limits floods."""

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine, self._clock = engine, clock
        self._providers = providers_of(engine.settings.auth)
        self.capabilities = Capabilities(engine.database)
        self._id_tokens = IdTokens(self._providers, clock=clock)
        self._known = CredentialCache(engine.settings.auth.token_cache_seconds)
        self._tries = LoginThrottle(clock)
        self._proxies = Proxies.of(engine.settings.http.trusted_proxies)
        self._looking: dict[bytes, asyncio.Task[Caller]] = {}
        self._denials: OrderedDict[tuple[str, str], float] = OrderedDict()

    async def require_some_identity(self) -> None:
        """Refuse to listen on a network if no caller could ever authenticate."""
        has_identity = bool(self._providers) or await has_token(self._engine.database)
        require_some_identity(self._engine.settings, has_identity=has_identity)

    async def caller(self, request: Request) -> Caller:
        """Return the caller. Raise `Unauthorized` without valid credentials, `Forbidden` for a signed-in non-member."""
        credentials = request.headers.getlist("authorization")
        if not credentials:
            if (found := developer(request, self._engine.settings)) is not None:
                return found
            raise self._unknown("This request requires authentication.")
        scheme, _, credential = credentials[0].partition(" ")
        credential = credential.strip()
        if len(credentials) > 1 or scheme.lower() != "bearer" or not 0 < len(credential) <= CREDENTIAL_CHARACTERS_MAX:
            raise self._unknown("The authorization header must contain one bearer token.")
        address = throttle_key(self.peer(request))
        if credential.startswith(CAPABILITY_PREFIX):
            return await self._attempt(credential, address)
        return await self._bearer(credential, address)

    def peer(self, request: Request) -> str:
        """Return the client's address, as far as it can be trusted."""
        return self._proxies.peer(request)

    async def close(self) -> None:
        await self._id_tokens.close()

    async def _attempt(self, credential: str, address: str) -> Caller:
        """Return the caller for one attempt. The signature proves it, while the token it was claimed with is valid."""
        found = await self.capabilities.unseal(credential)
        if found is None:
            self._tries.spend(address)
            raise self._unknown("The capability token is not accepted: it is invalid, or its attempt has ended.")
        if found.token_id:
            await self._require_in_use(found.token_id)
        return Caller(
            actor=f"attempt:{found.task_id}.{found.attempt}",
            tenant_id=found.tenant_id,
            may=frozenset({Access.ATTEMPT}),
            token_id=found.token_id,
            attempt=(found.task_id, found.attempt),
        )

    async def _require_in_use(self, token_id: str) -> None:
        """Raise `Unauthorized` if the API token that an attempt was claimed with expired or was revoked."""
        key, at = f"id {token_id}".encode(), self._clock()
        if self._known.fresh(key, at) is not None:
            return
        if not await is_in_use(self._engine.database, token_id):
            raise self._unknown("The token that this attempt was claimed with expired or was revoked.")
        self._known.keep(key, ANONYMOUS, at)

    async def _bearer(self, credential: str, address: str) -> Caller:
        digest = sha256(credential.encode()).digest()
        if (caller := self._known.fresh(digest, self._clock())) is not None:
            return caller
        # Check a credential once for all concurrent requests that present it.
        if (looking := self._looking.get(digest)) is None:
            made_out = self._make_out(digest, credential, address)
            looking = self._looking[digest] = asyncio.create_task(made_out, name="holdfast-authenticate")
            looking.add_done_callback(lambda _: self._looking.pop(digest, None))
        return await asyncio.shield(looking)

    async def _make_out(self, digest: bytes, credential: str, address: str) -> Caller:
        """Check a credential. A wrong one costs its address an attempt, unless it was valid a moment ago."""
        at = self._clock()
        if digest in self._known:
            try:
                caller = await self._look_up(credential)
            except Unauthorized:
                self._known.forget(digest)
                raise
        else:
            async with self._tries.check(address, is_id_token=_is_id_token(credential)):
                caller = await self._look_up(credential)
        self._known.keep(digest, caller, at)
        return caller

    async def _look_up(self, credential: str) -> Caller:
        database = self._engine.database
        if (token := api_token.parse(credential)) is not None:
            if (bearer := await find_bearer(database, token)) is None:
                raise self._unknown("The token is not accepted: it is unknown, expired or revoked.")
            may = ROLES[bearer.role]
            return Caller(
                actor=f"token:{bearer.name}",
                tenant_id=bearer.tenant_id,
                may=may,
                queues=bearer.queues,
                token_id=token.token_id,
            )
        if not self._providers or not _is_id_token(credential):
            raise self._unknown("The token is not accepted.")
        person = await self._id_tokens.read(credential)
        if (membership := await find_membership(database, person)) is None:
            log.warning("%r (%r) signed in, but is not a member", person.actor, person.email or "no address")
            raise Forbidden(
                "You are signed in, but you are not a member.",
                code="not_a_member",
                advice="Ask an administrator for `holdfast member add`.",
            )
        return Caller(actor=person.actor, tenant_id=membership.tenant_id, may=ROLES[membership.role])

    def _unknown(self, detail: str) -> Unauthorized:
        local = "With ENV=local, on this machine: send the header `x-dev-user: NAME`."
        advice = local if self._engine.settings.is_local else "Send `authorization: Bearer TOKEN`."
        return Unauthorized(detail, advice=advice)

    async def denied(self, caller: Caller, route: str, access: Access, error: Forbidden) -> None:
        """Record a refused caller in the audit log, at most once a minute per caller and route."""
        key, at = (f"{caller.tenant_id} {caller.actor}", route), self._clock()
        if access in UNPRIVILEGED or at - self._denials.get(key, float("-inf")) < DENIAL_SECONDS:
            return
        self._denials.pop(key, None)
        self._denials[key] = at
        while len(self._denials) > DENIALS_MAX:
            self._denials.popitem(last=False)
        change = Change(
            verb="access.deny",
            subject_kind="route",
            subject_id=route,
            after={"needs": access.value, "code": error.code},
        )
        await record(self._engine.database, caller.tenant_id, change, actor=caller.actor)


def _is_id_token(credential: str) -> bool:
    """Return whether a text has the shape of an ID token."""
    return credential.count(".") == 2
