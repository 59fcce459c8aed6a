"""Cases that share the fixtures of one test: for those that change nothing, or do not mind what others left.

`pytest.mark.parametrize` makes a database, a server and the invariants for every case; most refusals need them once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def each(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test for every case, one after the other; one that fails says which it was."""
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    given = [dict(zip(wanted, case if len(wanted) > 1 else (case,), strict=True)) for case in cases]
    assert given, "a test of no cases cannot fail"

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        async def run_async(*args: Any, **fixtures: Any) -> None:
            for case in given:
                try:
                    await test(*args, **fixtures, **case)
                except BaseException as error:
                    error.add_note(f"in the case {case!r:.300}")
                    raise

        @functools.wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            for case in given:
                try:
                    test(*args, **fixtures, **case)
                except BaseException as error:
                    error.add_note(f"in the case {case!r:.300}")
                    raise

        made = run_async if inspect.iscoroutinefunction(test) else run
        signature = inspect.signature(test)
        others = [one for name, one in signature.parameters.items() if name not in wanted]
        assert len(others) == len(signature.parameters) - len(wanted), "a case has a name that the test does not take"
        made.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        del made.__wrapped__  # type: ignore[attr-defined]
        return made

    return decorate
