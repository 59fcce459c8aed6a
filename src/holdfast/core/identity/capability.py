"""Capability tokens: the right to send heartbeats for one attempt and to settle it, and nothing else.

`hfc_CLAIM_MAC`: the claim contains tenant, task, attempt, the second at which it ends and the API token under which the
task was claimed. The MAC is HMAC-SHA-256 under a secret of this installation. The token identifies the caller as long
as that API token is in use. Whether the attempt still has its lease is decided by the fence, as for every caller.
"""

from __future__ import annotations

import hmac
import re
from base64 import urlsafe_b64encode
from datetime import datetime, timedelta
from typing import NamedTuple

PREFIX = "hfc_"
SECRET_BYTES_MIN = 32
SPARE = timedelta(days=1)
"""How long a capability outlives its lease: heartbeats extend the lease, and a late report must reach the fence."""

_TOKEN = re.compile(r"hfc_([0-9]{1,10}\.[0-9]{1,18}\.[0-9]{1,10}\.[0-9]{1,12}(?:\.[0-9a-f]{12})?)_([A-Za-z0-9_-]{43})")


class Capability(NamedTuple):
    """The content of a capability token. `ends` is in seconds since 1970; `token_id` is empty without an API token."""

    tenant_id: int
    task_id: int
    attempt: int
    ends: int
    token_id: str = ""


def end_of(lease_expires_at: datetime, timeout_seconds: float | None) -> int:
    """Return when the capability of an attempt ends: `SPARE` after its lease plus the attempt's own timeout."""
    return int((lease_expires_at + timedelta(seconds=timeout_seconds or 0) + SPARE).timestamp())


def seal(capability: Capability, secret: bytes) -> str:
    """Sign a capability, so that only this installation can have made it."""
    claim = ".".join(str(part) for part in capability if part != "")
    return f"{PREFIX}{claim}_{_mac(claim, secret)}"


def unseal(text: str, secret: bytes, *, at: float) -> Capability | None:
    """Return a token's content if this installation signed it and it has not ended; else None."""
    found = _TOKEN.fullmatch(text)
    if found is None or not hmac.compare_digest(found[2], _mac(found[1], secret)):
        return None
    parts = found[1].split(".")
    tenant_id, task_id, attempt, ends = map(int, parts[:4])
    return Capability(tenant_id, task_id, attempt, ends, "".join(parts[4:])) if at < ends else None


def _mac(claim: str, secret: bytes) -> str:
    assert len(secret) >= SECRET_BYTES_MIN
    made = hmac.digest(secret, f"holdfast capability {claim}".encode(), "sha256")
    return urlsafe_b64encode(made).rstrip(b"=").decode()
