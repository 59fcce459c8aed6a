"""API tokens as text: `hf_ID_SECRET`. The id is public and used for lookup; only a digest of the secret is stored.

The secret has 256 random bits, so a plain SHA-256 is sufficient: it cannot be guessed by brute force.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from hashlib import sha256

PREFIX = "hf_"
ID_BYTES = 6
SECRET_BYTES = 32

_TOKEN = re.compile(r"hf_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A token as its holder presents it. The secret is not part of its repr."""

    token_id: str
    secret: str = field(repr=False)

    @property
    def text(self) -> str:
        """The whole token, to be shown to its holder only."""
        return f"{PREFIX}{self.token_id}_{self.secret}"

    @property
    def digest(self) -> bytes:
        """The digest of the secret, as stored."""
        return sha256(self.secret.encode()).digest()


def mint(id_bytes: bytes, secret_bytes: bytes) -> ApiToken:
    """Build a token from random bytes."""
    assert len(id_bytes) == ID_BYTES and len(secret_bytes) == SECRET_BYTES
    return ApiToken(id_bytes.hex(), urlsafe_b64encode(secret_bytes).rstrip(b"=").decode())


def parse(text: str) -> ApiToken | None:
    """Parse a token; None if the text is not one."""
    found = _TOKEN.fullmatch(text)
    return None if found is None else ApiToken(found[1], found[2])
