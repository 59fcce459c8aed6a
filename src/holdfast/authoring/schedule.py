"""Declaration of schedules in code: what to run, when, and what happens when slots overlap or are missed.

A schedule is checked at declaration, so that a mistake shows at import. Workers register it when they start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Protocol, TypeGuard, TypeVar

from holdfast.authoring.action import Action, BoundAction
from holdfast.authoring.flow.flow import BoundFlow
from holdfast.codec import json_codec
from holdfast.codec.cron import timing_of, valid_interval
from holdfast.core.flows.bindings import accept_run_input
from holdfast.core.flows.graph import FlowDefinition
from holdfast.core.flows.nodes import FlowInput
from holdfast.core.schedules.schedule import Missed, Overlap
from holdfast.core.values import bounds
from holdfast.errors import Invalid

Choice = TypeVar("Choice", bound=StrEnum)

TIME_INPUT = "scheduled_for"
"""The input that receives the slot's time, if the action or flow has one of this name."""


class TracedFlow(Protocol):
    """A flow whose definition is built when it is first needed; its inputs are known before."""

    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> tuple[FlowInput, ...]: ...
    @property
    def definition(self) -> FlowDefinition: ...


Schedulable = Action[..., Any] | BoundAction[..., Any] | FlowDefinition | TracedFlow | BoundFlow[...]
"""What a schedule can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One declared schedule."""

    name: str
    target: Schedulable
    cron: str | None
    every_seconds: float | None
    timezone: str
    overlap: Overlap
    missed: Missed
    max_waiting: int
    input: Mapping[str, Any]
    wants_time: bool


def schedule_of(
    name: str,
    target: Schedulable,
    *,
    cron: str | None,
    every: str | float | timedelta | None,
    timezone: str,
    overlap: str,
    missed: str,
    max_waiting: int,
    input: Mapping[str, Any] | None,
) -> Schedule:
    """Check the arguments of a declaration and return the schedule."""
    seconds = None if every is None else valid_interval(every)
    timing_of(cron, seconds, timezone)
    task_input = dict(input or {})
    json_codec.encode(task_input, bytes_max=bounds.INPUT_BYTES_MAX, what="input")
    return Schedule(
        name=name,
        target=target,
        cron=cron,
        every_seconds=seconds,
        timezone=timezone,
        overlap=choice_of(Overlap, overlap, "overlap"),
        missed=choice_of(Missed, missed, "missed"),
        max_waiting=max_waiting,
        input=task_input,
        wants_time=_check_input(name, target, task_input),
    )


def choice_of(kind: type[Choice], value: str, what: str) -> Choice:
    """Return a policy choice by its name."""
    try:
        return kind(value)
    except ValueError:
        raise Invalid(
            f"{what}={value!r} is unknown.", code="invalid_schedule", advice=f"Choose one of {', '.join(kind)}."
        ) from None


def _is_flow(target: Schedulable) -> TypeGuard[FlowDefinition | TracedFlow]:
    # Inspect the type, not the object: reading the attribute of the object would trace the flow now.
    return isinstance(target, FlowDefinition) or hasattr(type(target), "definition")


def _check_input(name: str, target: Schedulable, task_input: dict[str, Any]) -> bool:
    """Refuse input that the target does not take; return whether it takes the slot's time."""
    if isinstance(target, BoundFlow):
        if target.key is not None:
            raise Invalid(
                f"The schedule {name} cannot have a key: every slot starts its own run.",
                code="invalid_schedule",
                advice="Omit it.",
            )
        return _check_input(name, target.flow, task_input)
    if _is_flow(target):
        wants_time = TIME_INPUT not in task_input and any(flow_input.name == TIME_INPUT for flow_input in target.inputs)
        accept_run_input(target.inputs, task_input | ({TIME_INPUT: ""} if wants_time else {}))
        return wants_time
    action = target.action if isinstance(target, BoundAction) else target
    if not isinstance(action, Action):
        raise Invalid(
            f"The schedule {name} needs an action or a flow, not {type(target).__name__}.",
            code="invalid_schedule",
            advice="Write `app.schedule(name, action, cron=…)`.",
        )
    if isinstance(target, BoundAction) and (target.options.key is not None or target.options.delay_seconds):
        raise Invalid(
            f"The schedule {name} cannot have a key or a delay: every slot creates its own task at its own time.",
            code="invalid_schedule",
        )
    wants_time = TIME_INPUT not in task_input and TIME_INPUT in action.signature.allowed
    action.signature.check(action.name, [task_input | ({TIME_INPUT: ""} if wants_time else {})])
    return wants_time
