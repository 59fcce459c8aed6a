"""Verify: check the invariants of the engine on a live database.

Each invariant is a statement in `store/sql/invariants/` that returns no rows while it holds; returned rows are
evidence. The check is read-only and safe while tasks run: every statement sees one snapshot, and joins use keys. A
violation is a bug or damage. A warning is a condition that time or a running worker should repair.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from holdfast.store.database import Database
from holdfast.store.statements import Statement, statements_in

EVIDENCE_MAX = 10
_WARNING = "Warning: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """An invariant that does not hold: its name and description, the number of offending rows, and some of them."""

    name: str
    sentence: str
    count: int
    evidence: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.sentence} {self.count} found: {'; '.join(self.evidence)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The number of invariants checked, and those that do not hold."""

    checked: int
    violations: list[Violation]
    warnings: list[Violation]

    @property
    def is_sound(self) -> bool:
        return not self.violations


async def verify(database: Database, *, only: Collection[str] | None = None) -> Verified:
    """Check every invariant, or `only` those with these names."""
    broken: list[Violation] = []
    warnings: list[Violation] = []
    invariants = [one for one in statements_in("invariants") if only is None or one.name in only]
    for invariant in invariants:
        found = await _check(database, invariant)
        if found is not None:
            (warnings if is_warning(invariant) else broken).append(found)
    return Verified(checked=len(invariants), violations=broken, warnings=warnings)


def is_warning(invariant: Statement) -> bool:
    """Return whether the invariant is only a warning: no guarantee is broken when it does not hold."""
    return invariant.description.startswith(_WARNING)


async def _check(database: Database, invariant: Statement) -> Violation | None:
    async with database.transaction() as session:
        # Whole tables are compared: a nested loop would take hours on a long history.
        await session.execute("set local enable_nestloop = off")
        rows = await session.fetch(
            "select count(*) over () as found, evidence::text "
            f"from (\n{invariant.text}\n) as evidence limit {EVIDENCE_MAX}"
        )
    if not rows:
        return None
    return Violation(
        name=invariant.name,
        sentence=invariant.description.removeprefix(_WARNING),
        count=rows[0]["found"],
        evidence=tuple(row["evidence"] for row in rows),
    )
