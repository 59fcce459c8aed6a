"""Carrier selection: the carrier that the settings name, its addresses, and the transport to it.

Libraries are imported on use.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.errors import Invalid, InvalidSettings
from holdfast.settings.settings import POSTGRES, REDIS, SQS, WakeSettings
from holdfast.wakeups.contract import HintTransport
from holdfast.wakeups.plugin import supplied

QUEUE = "{queue}"
NO_DEAD_LETTER_QUEUE = "DAG_VALIDATION_DEAD_LETTER_QUEUE_NOT_CONFIGURED"
_EXTRAS = {SQS: "aws", REDIS: "redis"}
_NOT_IN_SQS = re.compile(r"[^A-Za-z0-9_-]")


def is_external(settings: WakeSettings) -> bool:
    """Return whether hints travel outside PostgreSQL."""
    return settings.over != POSTGRES


def has_one_address(settings: WakeSettings) -> bool:
    """Return whether all queues share one address."""
    return QUEUE not in _template(settings)


def address_for(settings: WakeSettings, queue: str) -> str:
    """Return the address for hints of a queue: one address for all queues, or one for each.

    Characters that an SQS name cannot contain become hyphens. Two queues may then share an address, which costs a few
    extra queries.
    """
    name = _NOT_IN_SQS.sub("-", queue) if settings.over == SQS else queue
    return _template(settings).replace(QUEUE, name)


def addresses_of(settings: WakeSettings, queues: Sequence[str] | None) -> list[str]:
    """Return the addresses on which a worker of these queues listens; None means every queue."""
    if has_one_address(settings):
        return [_template(settings)]
    if queues is None:
        raise InvalidSettings(
            "Each queue has its own address for wake-ups, and this worker serves every queue.",
            code="carrier_needs_queues",
            advice=f"Name its queues (holdfast work --queues A,B), or use one address for all queues, without {QUEUE}.",
        )
    return list(dict.fromkeys(address_for(settings, queue) for queue in queues))


def _template(settings: WakeSettings) -> str:
    if settings.over == SQS:
        assert settings.sqs_queue_url is not None
        return settings.sqs_queue_url
    return f"{settings.redis_key_prefix}:wake" if settings.over == REDIS else settings.address or ""


def open_transport(settings: WakeSettings, address: str) -> HintTransport:
    """Return a transport to one address. It does not connect yet, so the carrier may be unavailable."""
    seconds = settings.visibility_seconds
    if settings.over not in _EXTRAS:
        return supplied(settings.over, address, visibility_seconds=seconds)
    try:
        if settings.over == SQS:
            from holdfast.wakeups.sqs import SqsQueue

            return SqsQueue(address, visibility_seconds=seconds)
        from holdfast.wakeups.redis_streams import RedisStream

        assert settings.redis_url is not None
        return RedisStream(settings.redis_url, address, visibility_seconds=seconds)
    except ModuleNotFoundError as error:
        raise Invalid(
            f"Wake-ups over {settings.over} need {error.name}, which is not installed.",
            code="extra_missing",
            advice=f"pip install 'holdfast[{_EXTRAS[settings.over]}]'",
        ) from error
    except ValueError:
        # The library's own message may contain a part of the password.
        raise InvalidSettings(
            f"The address of {settings.over} is not a valid URL.",
            code="carrier_address_invalid",
            advice="It looks like redis://host:6379/0 or rediss://…",
        ) from None


def require_carrier(settings: WakeSettings, queues: Sequence[str] | None) -> None:
    """Check at start that each queue has an address and that the carrier's library is installed."""
    if settings.sqs_dead_letter_url is not None and settings.over != SQS:
        raise InvalidSettings(
            f"A dead-letter queue is set, but wake-ups use {settings.over}, which has no SQS queue.",
            code=NO_DEAD_LETTER_QUEUE,
            advice="Set HOLDFAST_WAKE=sqs and HOLDFAST_SQS_QUEUE_URL, or unset HOLDFAST_SQS_DEAD_LETTER_URL.",
        )
    if is_external(settings):
        open_transport(settings, next(iter(addresses_of(settings, queues)), ""))
