"""`make demo` as a visitor runs it: on any database, on a machine that has nothing but Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast as package

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


@pytest.mark.crash
def test_the_demo_ends_well_on_a_given_database_and_needs_no_other_program(holdfast_url):
    ours = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    ours |= {"HOLDFAST_URL": holdfast_url, "HOLDFAST_UNSAFE": "1", "ONCE": "1", "PATH": "/nowhere"}
    ours["PYTHONPATH"] = str(Path(package.__file__).parent.parent)
    ran = subprocess.run([sys.executable, str(DEMO)], env=ours, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "PostgreSQL of HOLDFAST_URL is up" in ran.stdout and "kill -9" in ran.stdout
