"""Hints over Amazon SQS: one standard queue, with boto3 in its own threads.

Each call carries up to ten messages, in both directions. The visibility timeout only prevents duplicate queries; the
lease in the database prevents duplicate work. The queue's URL determines endpoint and region.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

from holdfast._internal.blocking_pool import BlockingCallPool
from holdfast.core.wakeups.hint import Hint
from holdfast.wakeups.contract import BATCH_MAX, HintDelivery, away, sends_of

T = TypeVar("T")

WAIT_SECONDS_MAX = 20
CONNECT_SECONDS_MAX = 3
ANSWER_SECONDS_MAX = 10
VISIBILITY_SECONDS_MAX = 43_200
THREADS_MAX = 8
SENDS = "sends"
_HOST = re.compile(r"^sqs[.]([a-z0-9-]+)[.]amazonaws[.]")
_COUNTS = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")


class SqsQueue:
    """One SQS queue."""

    def __init__(self, url: str, *, visibility_seconds: float) -> None:
        self.url = url
        self._visibility = max(1, min(VISIBILITY_SECONDS_MAX, round(visibility_seconds)))
        self._threads = BlockingCallPool("sqs", threads_max=THREADS_MAX)
        self._making = threading.Lock()
        self._made: Any = None

    async def publish(self, hints: Sequence[Hint]) -> None:
        for batch in _tens(hints):
            entries = [
                {
                    "Id": str(number),
                    "MessageBody": hint.body(),
                    "MessageAttributes": _attributes(hint),
                }
                for number, hint in enumerate(batch)
            ]
            answer = await self._ask("send_message_batch", Entries=entries)
            if failed := answer.get("Failed"):
                raise away(self._name, RuntimeError(f"{len(failed)} messages were refused: {failed[0].get('Code')}"))

    async def receive(self, count: int, *, wait_seconds: float) -> list[HintDelivery]:
        answer = await self._ask(
            "receive_message",
            MaxNumberOfMessages=max(1, min(BATCH_MAX, count)),
            WaitTimeSeconds=min(WAIT_SECONDS_MAX, int(wait_seconds)),
            VisibilityTimeout=self._visibility,
            MessageAttributeNames=[SENDS],
        )
        return [_delivery(message) for message in answer.get("Messages", ())]

    async def extend(self, deliveries: Sequence[HintDelivery]) -> None:
        """Extend messages; those that were deleted, or already given to another receiver, are skipped."""
        for batch in _tens(deliveries):
            entries = [
                {**_receipt(n, message), "VisibilityTimeout": self._visibility} for n, message in enumerate(batch)
            ]
            await self._ask("change_message_visibility_batch", Entries=entries)

    async def done(self, deliveries: Sequence[HintDelivery]) -> None:
        """Delete messages; one that cannot be deleted is delivered again, and dropped because its task has ended."""
        for batch in _tens(deliveries):
            await self._ask("delete_message_batch", Entries=[_receipt(n, message) for n, message in enumerate(batch)])

    async def check(self) -> str:
        answer = await self._ask("get_queue_attributes", AttributeNames=[*_COUNTS, "RedrivePolicy"])
        found = answer.get("Attributes", {})
        ready, hidden = (found.get(name, "0") for name in _COUNTS)
        dead = "with" if found.get("RedrivePolicy") else "without"
        return f"{self._name}, {ready} messages and {hidden} hidden, {dead} a dead-letter queue"

    async def close(self) -> None:
        if self._made is not None:
            self._made.close()

    @property
    def _name(self) -> str:
        return f"SQS queue {self.url.rpartition('/')[2]}"

    async def _ask(self, operation: str, **parameters: Any) -> Any:
        try:
            return await self._threads.run(lambda: getattr(self._client(), operation)(QueueUrl=self.url, **parameters))
        except Exception as error:  # a library may raise anything, and a hint must never end a worker
            raise away(self._name, error) from error

    def _client(self) -> Any:
        """Return the client, created on the first call in its thread: it reads files, and may request credentials."""
        with self._making:
            if self._made is None:
                parts = urlsplit(self.url)
                region = _HOST.match(parts.hostname or "")
                config = Config(
                    connect_timeout=CONNECT_SECONDS_MAX,
                    read_timeout=WAIT_SECONDS_MAX + ANSWER_SECONDS_MAX,
                    retries={"total_max_attempts": 2, "mode": "standard"},
                )
                session = boto3.session.Session()
                self._made = session.client(
                    "sqs",
                    endpoint_url=f"{parts.scheme}://{parts.netloc}",
                    # A server other than Amazon's has no region, but the library requires one.
                    region_name=region[1] if region else session.region_name or "us-east-1",
                    config=config,
                )
            return self._made


def _attributes(hint: Hint) -> dict[str, Any]:
    attributes: dict[str, Any] = {"taskType": {"DataType": "String", "StringValue": hint.action}}
    if hint.sends is not None:
        attributes[SENDS] = {"DataType": "Number", "StringValue": str(hint.sends)}
    return attributes


def _delivery(message: Any) -> HintDelivery:
    sends = message.get("MessageAttributes", {}).get(SENDS, {}).get("StringValue", "")
    return HintDelivery(body=message["Body"], receipt=message["ReceiptHandle"], sends=sends_of(sends))


def _receipt(number: int, delivery: HintDelivery) -> dict[str, Any]:
    return {"Id": str(number), "ReceiptHandle": delivery.receipt}


def _tens(many: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(many), BATCH_MAX):
        yield many[start : start + BATCH_MAX]
