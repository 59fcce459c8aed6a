"""A platform in this process: it starts nothing, but keeps names, loses answers and tells lies as it is told to."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.engine.launching.attach import Reservation
from holdfast.launchers.contract import LaunchError, LaunchOrder, LaunchState, LaunchStatus
from holdfast.launchers.profiles import Profile

REFUSE, LOSE_ANSWER = "refuse", "lose the answer"


@dataclass
class Platform:
    """`faults` happen to the next launches, one each; `asked` is every call, `running` what would run."""

    kind = "test"
    faults: list[str] = field(default_factory=list)
    asked: list[LaunchOrder] = field(default_factory=list)
    running: dict[str, LaunchOrder] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    seen: dict[str, LaunchStatus] = field(default_factory=dict)
    on_launch: object = None

    async def launch(self, order):
        self.asked.append(order)
        if self.on_launch is not None:
            await self.on_launch(order)
        fault = self.faults.pop(0) if self.faults else ""
        if fault == REFUSE:
            raise LaunchError("no capacity")
        self.running.setdefault(order.name, order)
        if fault == LOSE_ANSWER:
            raise LaunchError("the connection broke")
        return order.name

    async def describe(self, handles):
        alive = {name: LaunchStatus(state=LaunchState.RUNNING) for name in self.running}
        return {name: {**alive, **self.seen}[name] for name in handles if name in {**alive, **self.seen}}

    async def stop(self, name, handle):
        self.stopped.append(handle or name)
        self.running.pop(name, None)


@dataclass
class Fixed:
    """Profiles that are what a test says."""

    made: dict[str, Profile]

    def find(self, name):
        return self.made.get(name)


def profile(launcher, *, name="test", slots=2, launch_seconds=120.0, tenants=(), actions=()):
    return Profile(
        name=name, launcher=launcher, slots=slots, tenants=tenants, actions=actions, launch_seconds=launch_seconds
    )


def reservation_of(order) -> Reservation:
    """What the launched worker of an order knows."""
    return Reservation(int(order.task_id), order.attempt, None, order.token)
