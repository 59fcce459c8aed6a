"""An identity provider on loopback: real keys, real signatures, a real server for its keys, and hands on its moods."""

from __future__ import annotations

import base64
import json
import threading
import time
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

AUDIENCE = "holdfast-dashboard"


@cache
def rsa_key(number: int = 0, bits: int = 2048) -> rsa.RSAPrivateKey:
    """One of some keys; they take long to make."""
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@cache
def ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public(key: Any, kid: str, /, **changes: Any) -> dict[str, Any]:
    """The public half of a key as issuers publish it."""
    algorithm = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, "use": "sig", **changes}


class Issuer:
    """Signs ID tokens and publishes its keys. `mood` is what its endpoint answers: keys, down, odd, elsewhere …"""

    def __init__(self) -> None:
        self.issuer = "https://id.example/realm"
        self.keys: list[dict[str, Any]] = [public(rsa_key(), "one"), public(ec_key(), "two")]
        self.mood = "keys"
        self.fetches = 0
        self.is_held = threading.Event()
        self.is_held.set()
        outer = self

        class Endpoint(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.fetches += 1
                outer.is_held.wait(20)
                status, body = outer.answer() if self.path == "/keys" else outer.published()
                self.send_response(status)
                if status == 302:
                    self.send_header("location", "/elsewhere")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def answer(self) -> tuple[int, bytes]:
        match self.mood:
            case "down":
                return 503, b"away"
            case "odd":
                return 200, b'{"keys": [{"kty": "oct", "kid": "one", "k": "c2VjcmV0"}]}'
            case "endless":
                return 200, b" " * 1_000_000
            case "elsewhere":
                return 302, b""
            case _:
                return self.published()

    def published(self) -> tuple[int, bytes]:
        return 200, json.dumps({"keys": self.keys}).encode()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/keys"

    def close(self) -> None:
        self.is_held.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def claims(self, **changes: Any) -> dict[str, Any]:
        at = int(time.time())
        usual = {"iss": self.issuer, "sub": "1001", "aud": AUDIENCE, "iat": at, "exp": at + 600, "hd": "corp.example"}
        usual |= {"email": "anna@corp.example", "email_verified": True}
        return {name: value for name, value in {**usual, **changes}.items() if value is not None}

    def token(self, *, kid: str = "one", key: Any = None, header: dict[str, Any] | None = None, **changes: Any) -> str:
        """A token as the issuer would sign it, but for what is changed; `None` leaves a claim out."""
        signer = key or (ec_key() if kid == "two" else rsa_key())
        is_rsa = isinstance(signer, rsa.RSAPrivateKey)
        head = {"alg": "RS256" if is_rsa else "ES256", "typ": "JWT", "kid": kid, **(header or {})}
        signed = f"{part(head)}.{part(self.claims(**changes))}"
        algorithm = RSAAlgorithm(RSAAlgorithm.SHA256) if is_rsa else ECAlgorithm(ECAlgorithm.SHA256)
        return f"{signed}.{encoded(algorithm.sign(signed.encode(), signer))}"


def encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def part(value: Any) -> str:
    """One part of a token. Written by hand: libraries refuse to make the odd ones."""
    return encoded(json.dumps(value).encode())
