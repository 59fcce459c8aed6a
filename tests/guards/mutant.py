"""A mutant: one guard of one statement, and what is left of the statement without it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """`guard` is a part of the statement that occurs in it once."""

    statement: str
    guard: str
    replacement: str
    killed_by: str = ""
    redundant_because: str = ""

    @property
    def name(self) -> str:
        return f"{self.statement}: {' '.join(self.guard.split())[:70]}"


def killed(statement: str, *guards: tuple[str, str, str]) -> list[Mutant]:
    return [
        Mutant(statement=statement, guard=guard, replacement=replacement, killed_by=killed_by)
        for guard, replacement, killed_by in guards
    ]


def redundant(statement: str, guard: str, replacement: str, because: str) -> Mutant:
    return Mutant(statement=statement, guard=guard, replacement=replacement, redundant_because=because)
