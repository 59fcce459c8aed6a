"""A shop with one action and one flow, for tests that need no more of an app."""

from __future__ import annotations

import pytest

import holdfast as hf


@pytest.fixture
def app(holdfast_url):
    made = hf.App("shop", settings=hf.Settings(url=holdfast_url))

    @made.action
    async def charge(order: int) -> int:
        return order

    @made.flow
    def nightly(order: int):
        charge(order=order)

    return made
