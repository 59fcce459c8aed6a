"""`make demo` as a visitor runs it: on any database, on a machine that has nothing but Python."""

from __future__ import annotations

import os
import re
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
    assert "PostgreSQL of HOLDFAST_URL is up" in ran.stdout
    held = re.search(r"kill -9 of worker \d+ while it runs (\d+) tasks?", ran.stdout)
    lost = re.search(r"(\d+) lost attempts? found after", ran.stdout)
    told = [int(row.split("│")[-2]) for row in ran.stdout.splitlines() if row.startswith("│ ")]
    assert held is not None and lost is not None, ran.stdout
    assert int(held[1]) == int(lost[1]) == sum(told), "the story and the table agree"


STORIES = {
    "orders": ("done at attempt 2", "waits for the courier", "Why it matters", "holdfast run graph"),
    "coder": ("waits for a person", "approved by grace", "Why it matters", "holdfast run show"),
    "ingest": ("(100, 3), (150, 4)", "replaced exactly its own rows", "Why it matters", "holdfast dataset list"),
}


@pytest.mark.representative(one_in=3)
@pytest.mark.parametrize("name", STORIES)
def test_each_example_tells_its_story_with_public_names_only(holdfast_url, tmp_path, name):
    file = DEMO.with_name(f"{name}.py")
    internals = [
        line for line in file.read_text().splitlines() if line.startswith("from holdfast") or ".engine" in line
    ]
    assert internals == []
    ours = {one: value for one, value in os.environ.items() if not one.startswith("HOLDFAST_")}
    ours |= {"HOLDFAST_URL": holdfast_url, "PYTHONPATH": str(Path(package.__file__).parent.parent)}
    ours |= {"TMPDIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, str(file)], env=ours, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    places = [ran.stdout.find(words) for words in STORIES[name]]
    assert -1 not in places and places == sorted(places), ran.stdout
