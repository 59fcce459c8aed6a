"""Actions known only from a worker's declaration: enough to enqueue work, not to run it.

Input names are not checked here, because only the code knows them; the worker checks them.
"""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from holdfast.authoring.action import Action, Isolation
from holdfast.authoring.action_signature import Signature
from holdfast.engine.engine import Engine
from holdfast.engine.queries.workers import list_actions
from holdfast.errors import Invalid, NotFound


async def declared_action(engine: Engine, name: str) -> Action[..., Any]:
    """Return the action of that name as a worker last declared it; raise `NotFound` if none did."""
    declared = await engine.catalog.declared(engine.tenant_id, name)
    if declared is None:
        raise NotFound(
            f"No worker ever declared the action {name!r}.", code="action_not_found", advice=await _advice(engine, name)
        )
    return Action(
        name=name,
        function=_not_callable_here,
        queue=declared.queue,
        overrides={field.name: getattr(declared.policy, field.name) for field in fields(declared.policy)},
        isolation=Isolation.THREAD,
        priority=declared.priority,
        signature=Signature(_not_callable_here),
    )


def _not_callable_here(**_input: Any) -> Any:
    raise Invalid("This action's code is with its workers.", code="action_not_callable_here")


async def _advice(engine: Engine, name: str) -> str:
    names = [action.name for action in await list_actions(engine.database, engine.tenant_id)]
    if near := get_close_matches(name, names, n=1):
        return f"Did you mean {near[0]}?"
    if names:
        return f"Known are {', '.join(names[:10])}; --app APP takes it from the code."
    return "Start a worker (`holdfast work APP`) or give --app APP."
