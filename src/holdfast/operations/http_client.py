"""The HTTP client for operations, with the same results and errors as the local client.

A token is sent over https or to this machine, never unencrypted across a network. Redirects are not followed, and
proxies from the environment are not used.
"""

from __future__ import annotations

import ssl
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import msgspec

from holdfast.errors import HoldfastError, NotFound, Unauthorized, Unavailable
from holdfast.net.server_url import is_here, require_secure_url
from holdfast.operations.http_errors import error_of
from holdfast.operations.operation import Operation, Q

if TYPE_CHECKING:
    import ssl

    import httpx

A = TypeVar("A")

CONNECT_SECONDS = 10.0
KEY_HEADER = "idempotency-key"
DEV_HEADER = "x-dev-user"


class HttpClient:
    """Sends operations to a server. Only a local server accepts `dev_user`."""

    def __init__(self, url: str, *, token: str | None = None, dev_user: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._headers = _headers(url, token, dev_user)
        self._http: httpx.AsyncClient | None = None

    async def __aenter__(self) -> HttpClient:
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise Unavailable(
                "Asking a server needs httpx, which is not installed.",
                code="extra_missing",
                advice="pip install 'holdfast[http]', or use the URL of the database.",
            ) from error
        self._http = httpx.AsyncClient(
            headers=self._headers, trust_env=False, follow_redirects=False, verify=_trusted(self._url)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def ask(self, operation: Operation[Q, A], request: Q, *, key: str | None = None) -> A:
        status, body = await self._send(operation, request, key)
        if status >= 400:
            raise self._advised(error_of(status, body))
        try:
            return msgspec.json.decode(body, type=operation.answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _stranger(self._url, str(error)) from error

    def _advised(self, error: HoldfastError) -> HoldfastError:
        """Return the error with advice for a person, where the server's advice is for programs that send headers."""
        if isinstance(error, Unauthorized):
            error.advice = (
                "Set HOLDFAST_TOKEN to one that is in use: an administrator makes it with `holdfast token create`."
                if "authorization" in self._headers
                else "Set HOLDFAST_TOKEN; for a server of your own on this machine, HOLDFAST_ENV=local."
            )
        return error

    async def _send(self, operation: Operation[Q, A], request: Q, key: str | None) -> tuple[int, bytes]:
        import httpx

        assert self._http is not None, "the client is not open"
        plain = _plain(request)
        path = operation.path.format(**{name: _segment(plain.pop(name)) for name in operation.path_fields})
        headers = {} if key is None else {KEY_HEADER: key}
        timeout = httpx.Timeout(operation.seconds_max, connect=CONNECT_SECONDS)
        url = f"{self._url}{path}"
        try:
            if operation.has_body:
                headers["content-type"] = "application/json"
                content = msgspec.json.encode(plain)
                answer = await self._http.request(
                    operation.method, url, content=content, headers=headers, timeout=timeout
                )
            else:
                answer = await self._http.request(
                    operation.method, url, params=_query(plain), headers=headers, timeout=timeout
                )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unavailable(
                f"The server at {self._url} does not answer: {str(error) or type(error).__name__}.",
                code="server_unavailable",
                advice="Is `holdfast server` running there?",
            ) from error
        if 300 <= answer.status_code < 400:
            raise _stranger(self._url, f"status {answer.status_code}")
        return answer.status_code, answer.content


def _plain(request: msgspec.Struct) -> dict[str, Any]:
    """Return the request as plain values, without fields that have their default."""
    left_out = {
        field.name: field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
        for field in msgspec.structs.fields(type(request))
        if not field.required
    }
    return {
        name: value
        for name, value in msgspec.to_builtins(request).items()
        if name not in left_out or value != left_out[name]
    }


def _segment(value: Any) -> str:
    text = str(value)
    if not text or "/" in text or text in (".", ".."):
        raise NotFound(f"There is nothing called {text[:80]!r}.", code="name_not_possible")
    return quote(text, safe="")


def _query(plain: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return one pair per value; a list gives several."""
    pairs: list[tuple[str, str]] = []
    for name, value in plain.items():
        values = value if isinstance(value, list) else [value]
        pairs += [(name, str(item).lower() if isinstance(item, bool) else str(item)) for item in values]
    return tuple(pairs)


def _headers(url: str, token: str | None, dev_user: str | None) -> dict[str, str]:
    headers = {"accept": "application/json"}
    if token is not None:
        require_secure_url(url)
        headers["authorization"] = f"Bearer {token}"
    elif dev_user is not None and is_here(url):
        headers[DEV_HEADER] = dev_user
    return headers


def _trusted(url: str) -> ssl.SSLContext:
    """Return the TLS context with the machine's trusted authorities, which may include private ones.

    Without https, return an empty context: loading the authorities takes longer than most commands.
    """
    import ssl

    if url.lower().startswith("https://"):
        return ssl.create_default_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _stranger(url: str, why: str) -> Unavailable:
    return Unavailable(
        f"{url} answers, but not as a Holdfast server of this version does: {why}.",
        code="strange_answer",
        advice="Check the URL, and the versions of both.",
        is_lasting=True,
    )
