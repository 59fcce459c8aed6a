"""Enqueue requests of a client: checked and encoded; the parts that do not change are prepared once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.authoring.action import Action, BoundAction, TaskOptions
from holdfast.authoring.flow.flow import BoundFlow, Flow
from holdfast.codec import json_codec
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.values import bounds
from holdfast.engine.lifecycle.tasks.enqueue import (
    EnqueueOrder,
    InternedOrder,
    TaskInputs,
    enqueue,
    enqueue_in,
    intern,
)
from holdfast.engine.workers.declare import declare_action
from holdfast.errors import Invalid, NotFound
from holdfast.store.database import Session

if TYPE_CHECKING:
    from holdfast.client.client import Client

_NO_OPTIONS = TaskOptions()


def refuse_positional(arguments: tuple[Any, ...]) -> None:
    """Refuse positional input: input is stored by name, and a parameter may change its position."""
    if arguments:
        raise Invalid(
            f"{arguments[0]!r:.80} was passed by position; input is passed by name.",
            code="invalid_input",
            advice="Write client.enqueue(action, name=value).",
        )


def not_an_action(value: object) -> Invalid:
    """Build the error for an object that is not an action."""
    if isinstance(value, Flow | BoundFlow | FlowDefinition):
        name = value.flow.name if isinstance(value, BoundFlow) else value.name
        kind, advice = f"{name} is a flow", "Start it: client.start(flow, …)."
    elif callable(value):
        name = getattr(value, "__qualname__", None) or repr(value)[:80]
        kind, advice = f"{name} is a plain function", "Make it an action: @app.action above it."
    else:
        kind, advice = f"{value!r:.80} is of the type {type(value).__name__}", "Give an action, or the name of one."
    return Invalid(f"Only actions are enqueued; {kind}.", code="not_an_action", advice=advice)


class TaskRequests:
    """The actions that one client knows, and their prepared enqueue orders."""

    def __init__(self, client: Client, actions: Mapping[str, Action[..., Any]], *, input_bytes_max: int) -> None:
        self._client = client
        self._actions = actions
        self._input_bytes_max = input_bytes_max
        self._without_options: dict[Action[..., Any], BoundAction[Any, Any]] = {}
        self._interned: dict[Action[..., Any], InternedOrder] = {}
        self._names_forgotten = 0
        self._launched_actions: set[str] = set()

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
        """Return the action with its options; raise an error for a name or object that is not an action."""
        if isinstance(action, str):
            action = self.action(action)
        if isinstance(action, BoundAction):
            return action
        if not isinstance(action, Action):
            raise not_an_action(action)
        if (bound := self._without_options.get(action)) is None:
            bound = self._without_options[action] = BoundAction(action=action, options=_NO_OPTIONS)
        return bound

    def encode(self, bound: BoundAction[Any, Any], batch: list[Mapping[str, Any]]) -> list[bytes]:
        """Check inputs against the action's parameters and their types, and encode them."""
        signature = bound.action.signature
        signature.check(bound.action.name, batch)
        encoded = json_codec.encode_many(batch, bytes_max=self._input_bytes_max, what="input")
        signature.check_types(bound.action.name, encoded)
        return encoded

    async def enqueue(
        self,
        bound: BoundAction[Any, Any],
        inputs: TaskInputs,
        *,
        keys: Sequence[str] | None = None,
        session: Session | None = None,
    ) -> list[int]:
        """Enqueue encoded inputs, with a session in its open transaction; return the numbers of the tasks."""
        engine = self._client.engine
        if not inputs:
            return []
        interned = await self.intern(bound)
        if session is None:
            return (await enqueue(engine, interned, inputs, keys=keys)).task_ids
        return (await enqueue_in(session, engine.catalog, interned, inputs, keys=keys)).task_ids

    async def intern(self, bound: BoundAction[Any, Any]) -> InternedOrder:
        """Store the names that an enqueue needs; without options, once per action."""
        if bound.action.launcher is not None:
            await self._declare_launched((bound.action,))
        if bound.options is not _NO_OPTIONS:
            return await intern(self._client.engine.catalog, self._order(bound))
        catalog = self._client.engine.catalog
        if self._names_forgotten != catalog.forgotten:
            self._interned.clear()
            self._names_forgotten = catalog.forgotten
        if (interned := self._interned.get(bound.action)) is None:
            interned = self._interned[bound.action] = await intern(catalog, self._order(bound))
        return interned

    async def declare_all_launched(self) -> None:
        """Declare all actions that launchers run, because a flow may use any of them."""
        await self._declare_launched(self._actions.values())

    async def _declare_launched(self, actions: Iterable[Action[..., Any]]) -> None:
        """Declare actions to launchers. No running worker could have declared them, so the first client does; a worker
        that declares them later replaces this."""
        engine = self._client.engine
        for action in actions:
            if action.launcher is None or action.name in self._launched_actions:
                continue
            if await engine.catalog.declared(engine.tenant_id, action.name) is None:
                rules = action.rules(engine.policy_defaults)
                await declare_action(
                    engine.catalog, engine.tenant_id, action.name, rules, version="", launcher=action.launcher
                )
            self._launched_actions.add(action.name)

    def _order(self, bound: BoundAction[Any, Any]) -> EnqueueOrder:
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
