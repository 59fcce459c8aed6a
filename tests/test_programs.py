"""What the one check runs, and how it gets the programs that tests want: it may go without them, it never fails."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tools" / "programs.sh"
PACKAGES = [one.partition(":")[2] for one in re.search(r'^WANTED="(.*)"$', SCRIPT.read_text(), re.M)[1].split()]
APT_GET = """#!/bin/sh
echo "$@" >> {log}
case "$*" in *update*) exit {update};; *{absent}*) exit 100;; esac
"""


@pytest.fixture
def machine(tmp_path):
    """A machine with a shell and little else; `programs(uid, …)` runs the script there as that user."""
    for name in ("sh", "timeout"):
        (tmp_path / name).symlink_to(shutil.which(name))

    def put(name, text):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def programs(uid, *, update=0, absent="nothing", has_apt=True):
        put("id", f"#!/bin/sh\necho {uid}\n")
        if has_apt:
            put("apt-get", APT_GET.format(log=tmp_path / "log", update=update, absent=absent))
        # The script adds the folders of programs for root, which this machine has not.
        text = SCRIPT.read_text().replace(":/usr/sbin:/usr/local/sbin", "")
        done = subprocess.run(["sh"], input=text, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
        log = tmp_path / "log"
        return done.returncode, done.stdout, log.read_text() if log.exists() else ""

    programs.put = put
    return programs


def test_the_check_gets_programs_and_runs_everything_whole():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in lines if line.startswith("make ")] == [
        "make programs",
        "make test-all",
        "make stock",
    ]


def test_the_public_workflow_runs_the_same_commands():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    commands = re.findall(r"^ +- run: (.+)$", workflow, re.MULTILINE)
    assert {"sudo make programs", "make test PYTHON=python", ".ci/run", "make docs"} <= set(commands)


def test_root_gets_what_is_not_there(machine):
    machine.put("curl", "")
    code, said, asked = machine(0)
    assert (code, said) == (0, "")
    wanted = [line.split()[-1] for line in asked.splitlines() if "install" in line]
    assert wanted == [one for one in PACKAGES if one != "curl"]


def test_a_package_that_cannot_be_had_keeps_no_other_away_and_is_named(machine):
    code, said, asked = machine(0, update=100, absent="pgbouncer")
    assert code == 0 and said.splitlines()[-1].endswith("apt-get install pgbouncer")
    assert asked.count("install") == 2 * len(PACKAGES)  # --no-install-recommends


@pytest.mark.parametrize(("uid", "has_apt"), [(1000, True), (0, False)])
def test_who_may_not_install_is_told_what_to_install(machine, uid, has_apt):
    code, said, asked = machine(uid, has_apt=has_apt)
    assert (code, asked) == (0, "")
    assert said.endswith(f"apt-get install {' '.join(PACKAGES)}\n")


def test_what_is_there_is_left_alone(machine):
    for name in ("redis-server", "pgbouncer", "node", "curl"):
        machine.put(name, "")
    assert machine(0) == (0, "", "")
