"""Ask the engine's own verification about the database a measurement left behind."""

from __future__ import annotations

from holdfast.bench.arena import Arena

_DOUBLES = """
select count(*)
from (
  select task_id
  from holdfast.attempt
  where state = 'c'
  group by task_id
  having count(*) > 1
) as twice
"""


async def violations(arena: Arena) -> list[str]:
    """What breaks an invariant; nothing, if all is well."""
    doubles = await arena.fetchval(_DOUBLES)
    return [f"{doubles} tasks completed more than once"] if doubles else []
