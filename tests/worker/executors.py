"""Executors of one function, for tests."""

from __future__ import annotations

import holdfast as hf


class By:
    """An executor made of one coroutine function."""

    def __init__(self, function) -> None:
        self._function = function

    async def execute(self, attempt: hf.Attempt) -> object:
        return await self._function(attempt)


def app_by(execute, **options) -> hf.App:
    return hf.App("local", executor=By(execute), **options)
