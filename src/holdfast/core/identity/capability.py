"""Capability tokens: the right to beat for, and to settle, one attempt and nothing else.

`hfc_CLAIM_MAC`: the claim names tenant, task, attempt, the second it ends and the API token under which the task was
claimed, and the MAC is HMAC-SHA-256 under a secret of this installation. It says who asks, as long as that token is in
use; whether the attempt still holds its lease is decided by the fence, as for everybody.
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
    """What a capability token says. `ends` is in seconds since 1970; `token_id` is empty without an API token."""

    tenant_id: int
    task_id: int
    attempt: int
    ends: int
    token_id: str = ""


def end_of(lease_expires_at: datetime, timeout_seconds: float | None) -> int:
    """When the capability of an attempt ends: some time after the lease and the attempt's own limit do."""
    return int((lease_expires_at + timedelta(seconds=timeout_seconds or 0) + SPARE).timestamp())


def seal(capability: Capability, secret: bytes) -> str:
    """The capability as text that only this installation can have made."""
    claim = ".".join(str(part) for part in capability if part != "")
    return f"{PREFIX}{claim}_{_mac(claim, secret)}"


def unseal(text: str, secret: bytes, *, at: float) -> Capability | None:
    """What a token says, if this installation made it and it has not ended; else nothing."""
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
