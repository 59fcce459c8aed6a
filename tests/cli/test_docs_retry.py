"""The retry that the page about HTTP goes through, typed as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECTION = (ROOT / "docs" / "http.md").read_text().partition("## A retry, step by step")[2].partition("\n## ")[0]
SHOWN = "http://127.0.0.1:8787"


def fenced(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", SECTION, re.DOTALL)


def typed(block: str) -> list[str]:
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def test_every_line_can_be_typed_and_ends_as_the_page_says(program, tmp_path):
    [first], second = [typed(block) for block in fenced("console")]
    assert first.startswith("HOLDFAST_ENV=local holdfast dev ")
    _, _, _, app = first.split()
    for name, text in zip(("failing.py", "retry.py"), fenced("python"), strict=True):
        (tmp_path / name).write_text(text)
    dev = program.start("dev", str(tmp_path / app), HOLDFAST_ENV="local")
    told = iter(dev.stderr.readline, "")
    url = next(line.split()[1] for line in told if line.startswith("HTTP"))
    while "shop.refund" not in program.run("action", "list").out:
        assert dev.poll() is None, dev.stderr.read()
    (tmp_path / "holdfast").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m holdfast "$@"\n')
    (tmp_path / "holdfast").chmod(0o755)
    (tmp_path / "python").symlink_to(sys.executable)
    environment = program.environment()
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    script = "\n".join(line.replace(SHOWN, url) for line in second)
    done = subprocess.run(
        ["bash", "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.endswith(fenced("text")[0]), (done.stdout, done.stderr)
