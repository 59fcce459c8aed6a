"""The context in which operations run: an open client and the name of the caller. HTTP and local clients share it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from holdfast.client.client import Client
from holdfast.engine.engine import Engine
from holdfast.engine.idempotency import IdempotentRequest, ReplayedResponse
from holdfast.errors import Invalid
from holdfast.operations.operation import Operation, Q
from holdfast.store.catalog import DEFAULT_TENANT_ID
from holdfast.store.database import UNFIT, Database
from holdfast.store.tenancy import TenantDatabase

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class OperationContext:
    """One engine, one tenant and one actor. `once` stores the response of an idempotent request."""

    client: Client
    actor: str
    once: IdempotentRequest | None = None

    @property
    def engine(self) -> Engine:
        return self.client.engine

    @property
    def database(self) -> Database:
        return self.client.engine.database

    @property
    def tenant_id(self) -> int:
        return self.client.engine.tenant_id

    @property
    def is_of_installation(self) -> bool:
        """Whether the caller acts for all tenants: with database access, or in the default tenant of a server."""
        return self.tenant_id == DEFAULT_TENANT_ID or not isinstance(self.database, TenantDatabase)


async def perform(operation: Operation[Q, A], context: OperationContext, request: Q) -> A:
    """Execute an operation. A request repeated under the same idempotency key returns the first response."""
    _require_text(request)
    try:
        return await operation.handler(context, request)
    except ReplayedResponse as before:
        return msgspec.json.decode(before.answer, type=operation.answer)
    except UNFIT as error:
        raise Invalid(
            f"The database cannot take a value of this request: {' '.join(str(error).split())[:200].rstrip('.')}.",
            code="invalid_value",
        ) from error


def _require_text(request: msgspec.Struct) -> None:
    """Refuse text that a text column cannot store. Inputs are checked where they are encoded."""
    for name in request.__struct_fields__:
        value = getattr(request, name)
        for text in _texts(value):
            if "\x00" in text or (not text.isascii() and _has_surrogate(text)):
                raise Invalid(f"{name} contains a character that no text can.", code="invalid_text", field=name)


def _texts(value: object) -> Iterable[str]:
    if isinstance(value, str):
        return (value,)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else ()


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
