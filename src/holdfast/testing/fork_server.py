"""A fork server: `python -m holdfast.testing.fork_server FILE` imports once, then forks a child for each order.

It runs no event loop and no threads, so forking is safe here, unlike in a test process.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.testing.crash import FaultMode, Stage, StatementFault


def main(arguments: list[str]) -> int:
    acts = _load(Path(arguments[0]))
    for line in sys.stdin:
        print(json.dumps(_obey(acts, json.loads(line))), flush=True)
    return 0


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("holdfast_victim_acts", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _obey(acts: ModuleType, order: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _die(acts, order, writing)
    os.close(writing)
    with os.fdopen(reading) as said:
        lines = said.read().splitlines()
    _, status = os.waitpid(child, 0)
    return {"status": status, "said": [json.loads(line) for line in lines]}


def _die(acts: ModuleType, order: dict[str, Any], writing: int) -> None:
    """Run the act until the fault fires; never return."""
    code = 1
    try:
        stage = Stage(
            url=order["url"],
            tap=StatementFault(FaultMode(order["mode"]), order["k"]),
            given=order["given"],
            say=lambda word: _say(writing, word),
        )
        asyncio.run(getattr(acts, order["act"])(stage))
        code = 0
    except BaseException:  # noqa: BLE001 - a forked child must not return into its parent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _say(writing: int, word: Any) -> None:
    os.write(writing, json.dumps(word).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
