"""Enqueue requests of a client: checked and encoded; the parts that do not change are prepared once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from holdfast.authoring.action import Action, BoundAction, TaskOptions
from holdfast.authoring.flow.flow import BoundFlow, Flow
from holdfast.client.launched_actions import LaunchedActions
from holdfast.codec import json_codec
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.values import bounds
from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle.tasks.enqueue import EnqueueOrder, InternedOrder, intern
from holdfast.errors import Invalid, NotFound

if TYPE_CHECKING:
    from holdfast.client.client import Client

_PLAIN = TaskOptions()
_BATCH = 1_000


def refuse_positional(given: tuple[Any, ...]) -> None:
    """Refuse positional input: input is stored by name, and a parameter may change its position."""
    if given:
        raise Invalid(
            f"{given[0]!r:.80} was passed by position; input is passed by name.",
            code="invalid_input",
            advice="Write client.enqueue(action, name=value).",
        )


def batches(inputs: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    source = iter(inputs)
    while batch := list(islice(source, _BATCH)):
        yield batch


def not_an_action(given: object) -> Invalid:
    """Build the error for an object that is not an action."""
    if isinstance(given, Flow | BoundFlow | FlowDefinition):
        name = given.flow.name if isinstance(given, BoundFlow) else given.name
        said, advice = f"{name} is a flow", "Start it: client.start(flow, …)."
    elif callable(given):
        name = getattr(given, "__qualname__", None) or repr(given)[:80]
        said, advice = f"{name} is a plain function", "Make it an action: @app.action above it."
    else:
        said, advice = f"{given!r:.80} is of the type {type(given).__name__}", "Give an action, or the name of one."
    return Invalid(f"Only actions are enqueued; {said}.", code="not_an_action", advice=advice)


class Intake:
    """The actions that one client knows, and their prepared enqueue orders."""

    def __init__(self, client: Client, actions: Mapping[str, Action[..., Any]], *, input_bytes_max: int) -> None:
        self._client = client
        self._actions = actions
        self.input_bytes_max = input_bytes_max
        self._plain: dict[Action[..., Any], BoundAction[Any, Any]] = {}
        self._interned: dict[Action[..., Any], InternedOrder] = {}
        self._forgotten = 0
        self._launchable = LaunchedActions()

    def action(self, name: str) -> Action[..., Any]:
        """Return the app's action of that name; raise `NotFound` if there is none."""
        known = self._actions.get(name)
        if known is None:
            raise NotFound(
                f"This app has no action {name!r}.",
                code="action_not_found",
                advice=f"It has {', '.join(sorted(self._actions)) or 'none'}.",
            )
        return known

    def bound(self, action: Action[..., Any] | BoundAction[..., Any] | str) -> BoundAction[Any, Any]:
        if isinstance(action, str):
            action = self.action(action)
        if isinstance(action, BoundAction):
            return action
        if not isinstance(action, Action):
            raise not_an_action(action)
        if (plain := self._plain.get(action)) is None:
            plain = self._plain[action] = BoundAction(action=action, options=_PLAIN)
        return plain

    def encode(self, bound: BoundAction[Any, Any], batch: list[Mapping[str, Any]]) -> list[bytes]:
        signature = bound.action.signature
        signature.check(bound.action.name, batch)
        encoded = json_codec.encode_many(batch, bytes_max=self.input_bytes_max, what="input")
        signature.check_types(bound.action.name, encoded)
        return encoded

    async def declare_launched(self) -> None:
        """Declare all actions that launchers run, because a flow may use any of them."""
        await self._launchable.declare(self._client.engine, self._actions.values())

    async def intern(self, bound: BoundAction[Any, Any]) -> InternedOrder:
        if bound.action.launcher is not None:
            await self._launchable.declare(self._client.engine, (bound.action,))
        if bound.options is not _PLAIN:
            return await intern(self._client.engine.catalog, self.order(bound))
        catalog = self._client.engine.catalog
        if self._forgotten != catalog.forgotten:
            self._interned.clear()
            self._forgotten = catalog.forgotten
        if (known := self._interned.get(bound.action)) is None:
            known = self._interned[bound.action] = await intern(catalog, self.order(bound))
        return known

    def announce(self, engine: Engine, interned: InternedOrder) -> None:
        """Notify workers, unless the work is delayed.

        It uses the engine that accepted the work: if the client was closed meanwhile, stored work must not raise an
        error.
        """
        if not interned.order.delay_seconds:
            engine.notifier.notify(lanes=(interned.lane_id,))

    def order(self, bound: BoundAction[Any, Any]) -> EnqueueOrder:
        action, options = bound.action, bound.options
        return EnqueueOrder(
            tenant_id=self._client.engine.tenant_id,
            queue=action.queue if options.queue is None else bounds.valid_queue(options.queue),
            action=action.name,
            policy=bound.policy(self._client.engine.policy_defaults),
            priority=action.priority if options.priority is None else bounds.valid_priority(options.priority),
            delay_seconds=bounds.valid_delay(options.delay_seconds),
            tags=bounds.valid_tags(options.tags),
        )
