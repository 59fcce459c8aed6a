"""API tokens as text: `hf_ID_SECRET`. The id is for looking it up and may be seen; of the secret only a digest is kept.

The secret has 256 random bits, so a plain SHA-256 is digest enough: nobody guesses it, slowly or fast.
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
    """A token as its holder presents it. The secret does not show when it is printed."""

    token_id: str
    secret: str = field(repr=False)

    @property
    def text(self) -> str:
        """The whole token, for its holder's eyes."""
        return f"{PREFIX}{self.token_id}_{self.secret}"

    @property
    def digest(self) -> bytes:
        """What is stored of the secret."""
        return sha256(self.secret.encode()).digest()


def mint(id_bytes: bytes, secret_bytes: bytes) -> ApiToken:
    """A token of these random bytes."""
    assert len(id_bytes) == ID_BYTES and len(secret_bytes) == SECRET_BYTES
    return ApiToken(id_bytes.hex(), urlsafe_b64encode(secret_bytes).rstrip(b"=").decode())


def parse(text: str) -> ApiToken | None:
    """The token that a text is, or nothing."""
    found = _TOKEN.fullmatch(text)
    return None if found is None else ApiToken(found[1], found[2])
