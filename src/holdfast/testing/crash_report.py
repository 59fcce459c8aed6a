"""The report of a crash test: one line for each crash point, and whether the code is safe to retry."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Traces:
    """What one round recorded: how it ended, what was sent, what ran."""

    where: str = ""
    state: str = ""
    attempts: int = 0
    sends: Counter[str] = field(default_factory=Counter)
    """How often each effect was sent, by its name and key."""
    names: dict[str, str] = field(default_factory=dict)
    keyless: set[str] = field(default_factory=set)
    """Effects whose function takes no idempotency key, so the provider cannot detect a repetition."""
    steps: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)

    def keys_of(self, name: str) -> int:
        return sum(known == name for known in self.names.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashPoint:
    """One crash point: how the work ended after a crash there, what was repeated, and the problems with that."""

    number: int
    where: str
    state: str
    attempts: int
    resent: tuple[str, ...]
    """Effects sent more than once: a provider that ignores keys executed them as often."""
    repeated: tuple[str, ...]
    """Steps that ran again (they are pure), and watched calls that were repeated."""
    problems: tuple[str, ...]

    @property
    def is_safe(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashReport:
    """The answer to "is it safe to retry?". `print(report)` shows the table."""

    name: str
    state: str
    points: tuple[CrashPoint, ...]

    @property
    def is_safe(self) -> bool:
        """Whether it ends the same wherever it crashes, and every repetition can be recognized."""
        return all(point.is_safe for point in self.points)

    @property
    def resent(self) -> tuple[str, ...]:
        """Every effect that a crash caused to be sent twice: its provider must honour idempotency keys."""
        return tuple(sorted({effect for point in self.points for effect in point.resent}))

    def assert_safe(self) -> None:
        """Fail with the table unless it is safe."""
        assert self.is_safe, f"\n{self}"

    def __str__(self) -> str:
        verdict = "safe to retry" if self.is_safe else "NOT safe to retry"
        crashes = f"crashed at {len(self.points)} points"
        lines = [f"{self.name} is {verdict}: {self.state} undisturbed, {crashes}.", ""]
        width = max((len(point.where) for point in self.points), default=0)
        lines.append(f"     {'crashed':<{width}}  {'ended':<9}  attempts  again")
        for point in self.points:
            again = "; ".join((*(f"sent {effect}" for effect in point.resent), *point.repeated))
            mark = "✓" if point.is_safe else "✕"
            head = f"{mark} {point.number:>2} {point.where:<{width}}  {point.state:<9}  {point.attempts:>8}  {again}"
            lines.append(head.rstrip())
            lines += [f"     ↳ {problem}" for problem in point.problems]
        if self.resent:
            lines += ["", f"Sent more than once; providers must honour idempotency keys: {', '.join(self.resent)}."]
        return "\n".join(lines)


def judged(number: int, usual: Traces, found: Traces) -> CrashPoint:
    """Compare a crashed round with the undisturbed one."""
    resent = {effect: count for effect, count in found.sends.items() if count > usual.sends.get(effect, 1)}
    calls = {name: count for name, count in found.calls.items() if count > usual.calls[name]}
    steps = [name for name, count in found.steps.items() if count > usual.steps[name]]
    problems = [] if found.state == usual.state else [f"it ended as {found.state}, undisturbed as {usual.state}"]
    problems += [
        f"{name} was sent under {found.keys_of(name)} keys, undisturbed under {usual.keys_of(name)}"
        for name in sorted(set(found.names.values()))
        if found.keys_of(name) > usual.keys_of(name)
    ]
    problems += [
        f"{effect} was sent {count} times and takes no idempotency_key: done {count} times"
        for effect, count in resent.items()
        if effect in found.keyless
    ]
    problems += [
        f"{name} was called {count} times, undisturbed {usual.calls[name]}: put it in ctx.step or ctx.effect"
        for name, count in calls.items()
    ]
    return CrashPoint(
        number=number,
        where=found.where,
        state=found.state,
        attempts=found.attempts,
        resent=tuple(sorted(resent)),
        repeated=(*(f"step {name}" for name in sorted(steps)), *(f"call {name}" for name in sorted(calls))),
        problems=tuple(problems),
    )
