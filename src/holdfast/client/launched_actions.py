"""Declaration of launched actions by clients: no running worker could have declared them, so the first client does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.authoring.action import Action
from holdfast.engine.engine import Engine
from holdfast.engine.workers.declare import declare_action


class LaunchedActions:
    """The actions that one client has declared. Later declarations by workers replace them."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    async def declare(self, engine: Engine, actions: Iterable[Action[..., Any]]) -> None:
        """Declare these actions to launchers; actions without a launcher are left to their workers."""
        for action in actions:
            if action.launcher is None or action.name in self._known:
                continue
            if await engine.catalog.declared(engine.tenant_id, action.name) is None:
                where, rules = (engine.catalog, engine.tenant_id, action.name), action.rules(engine.policy_defaults)
                await declare_action(*where, rules, version="", launcher=action.launcher)
            self._known.add(action.name)
