from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.testing.crash import ForkServer


@pytest.fixture(scope="session")
def fork_server():
    """Processes that die where they are told, forked from one that imported everything."""
    with ForkServer(Path(__file__).with_name("acts.py")) as made:
        yield made
