"""One face for every carrier: how to configure, spoil, stop and start each, and how to look inside."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import boto3
import redis
from tests.wakeups.servers import RedisServer, SqsServer

from holdfast.core.wakeups.hint import Hint
from holdfast.settings.settings import WakeSettings
from holdfast.store.database import Database
from holdfast.wakeups.carriers import open_transport
from holdfast.wakeups.contract import HintDelivery, HintTransport
from holdfast.wakeups.listener import Listener

T = TypeVar("T")

GARBAGE = ("", "{", "null", "[]", '{"task_id": "-1"}', '{"task_id": "999999999"}', "\x00", '{"task_id": [')
KILL_LISTENERS = """
select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and query like 'LISTEN%'
"""


@cache
def _client(endpoint: str) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )


class Mischief:
    """What happens to everything on its way, by the name of a method."""

    def __init__(self, kind: str = "pass_on") -> None:
        self.kind = kind
        self.count = 0
        self._random = random.Random(7)
        self._kept: dict[type, list[Any]] = {}

    def __call__(self, items: Sequence[T], corrupt: Callable[[T, str], T]) -> list[T]:
        self.count += len(items)
        if self.kind == "corrupt":
            return [corrupt(item, self._random.choice(GARBAGE)) for item in items]
        done: list[T] = getattr(self, self.kind)(list(items))
        return done

    def pass_on(self, items: list[T]) -> list[T]:
        return items

    def drop(self, _items: list[T]) -> list[T]:
        return []

    def repeat(self, items: list[T]) -> list[T]:
        return [item for item in items for _ in range(3)]

    def reorder(self, items: list[T]) -> list[T]:
        return self._random.sample(items, len(items))

    def delay(self, items: list[T]) -> list[T]:
        """Each waits for the next of its kind to come along; the last one waits for ever."""
        if not items:
            return []
        before = self._kept.get(type(items[0]), [])
        self._kept[type(items[0])] = items
        return before


class Spoiled:
    """A transport on which mischief happens, in both directions."""

    def __init__(self, inner: HintTransport, mischief: Mischief) -> None:
        self._inner = inner
        self._mischief = mischief
        self.extend = inner.extend
        self.done = inner.done
        self.check = inner.check
        self.close = inner.close

    async def publish(self, hints: Sequence[Hint]) -> None:
        if kept := self._mischief(hints, lambda _hint, _garbage: Hint(task_id=2**62, action="nobody's")):
            await self._inner.publish(kept)

    async def receive(self, count: int, *, wait_seconds: float) -> list[HintDelivery]:
        received = await self._inner.receive(count, wait_seconds=wait_seconds)
        return self._mischief(received, lambda one, garbage: HintDelivery(body=garbage, receipt=one.receipt))


class Carrier:
    """What a test needs to know about a carrier."""

    name: str
    is_external = True

    def __init__(self) -> None:
        self.mischief = Mischief()

    def settings(self) -> WakeSettings:
        raise NotImplementedError

    def spoil(self, monkeypatch: Any, kind: str) -> None:
        """From now on this happens to every hint of this process."""
        self.mischief = Mischief(kind)

        def open_spoiled(settings: WakeSettings, address: str) -> Any:
            return Spoiled(open_transport(settings, address), self.mischief)

        monkeypatch.setattr("holdfast.worker.transport.database.open_transport", open_spoiled)
        monkeypatch.setattr("holdfast.engine.wakeups.relay.open_transport", open_spoiled)

    async def stop(self, database: Database, monkeypatch: Any) -> None:
        self.server.stop()  # type: ignore[attr-defined]

    async def start(self, monkeypatch: Any) -> None:
        self.server.start()  # type: ignore[attr-defined]


class Own(Carrier):
    """A factory of the test's, in the place of one that somebody brings."""

    name = "tests.wakeups.own:make"

    def settings(self) -> WakeSettings:
        return WakeSettings(over=self.name, address=uuid.uuid4().hex)


class Postgres(Carrier):
    name = "postgres"
    is_external = False

    def settings(self) -> WakeSettings:
        return WakeSettings()

    def spoil(self, monkeypatch: Any, kind: str) -> None:
        mischief = self.mischief = Mischief(kind)
        heard = Listener._on_notification

        def hear(self: Listener, connection: Any, pid: int, channel: str, payload: str) -> None:
            for one in mischief([payload], lambda _payload, garbage: garbage):
                heard(self, connection, pid, channel, one)

        monkeypatch.setattr(Listener, "_on_notification", hear)

    async def stop(self, database: Database, monkeypatch: Any) -> None:
        """Nobody hears anything, and whoever listened is cut off."""
        with_ears = Listener._on_notification
        monkeypatch.setattr(Listener, "_on_notification", lambda *_: None)
        self._with_ears = with_ears
        await database.fetch(KILL_LISTENERS)

    async def start(self, monkeypatch: Any) -> None:
        monkeypatch.setattr(Listener, "_on_notification", self._with_ears)


class Redis(Carrier):
    name = "redis"

    def __init__(self, server: RedisServer) -> None:
        super().__init__()
        self.server = server
        self.prefix = f"test-{uuid.uuid4().hex}"

    def settings(self, **fields: Any) -> WakeSettings:
        return WakeSettings(over="redis", redis_url=self.server.url, redis_key_prefix=self.prefix, **fields)

    def send(self, body: str) -> None:
        with redis.Redis.from_url(self.server.url) as client:
            client.xadd(f"{self.prefix}:wake", {"body": body, "taskType": "anything"})

    def left(self) -> int:
        """Messages that are there, hidden or not."""
        with redis.Redis.from_url(self.server.url) as client:
            return int(client.xlen(f"{self.prefix}:wake"))


class Sqs(Carrier):
    name = "sqs"

    def __init__(self, server: SqsServer) -> None:
        super().__init__()
        self.server = server
        self._name = f"test-{uuid.uuid4().hex}"
        self._client = _client(server.endpoint)
        self.make()

    def make(self, name: str = "") -> str:
        """Make the queue, or another one beside it."""
        url: str = self._client.create_queue(QueueName=name or self._name)["QueueUrl"]
        if not name:
            self.url = url
        return url

    async def start(self, monkeypatch: Any) -> None:
        await super().start(monkeypatch)
        self.make()

    def settings(self, **fields: Any) -> WakeSettings:
        return WakeSettings(over="sqs", sqs_queue_url=self.url, **fields)

    def send(self, body: str, *, url: str = "") -> None:
        self._client.send_message(QueueUrl=url or self.url, MessageBody=body)

    def left(self, *, url: str = "") -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self._client.get_queue_attributes(QueueUrl=url or self.url, AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)

    def attributes(self) -> dict[str, Any]:
        """Take a message off and show its attributes."""
        found = self._client.receive_message(QueueUrl=self.url, MessageAttributeNames=["All"])["Messages"][0]
        return {"body": json.loads(found["Body"]), **found["MessageAttributes"]}
