"""Two tenants for every test here."""

from __future__ import annotations

from tests.tenants.acme import acme, at_acme, theirs

__all__ = ["acme", "at_acme", "theirs"]
