"""Environments of other engines: one each in the user's cache directory, created once and reused."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sys
from pathlib import Path

from holdfast.errors import Unavailable
from holdfast_bench.peers.field import Peer

INSTALL_SECONDS_MAX = 600.0


def cache_directory() -> Path:
    """Return `$XDG_CACHE_HOME/holdfast/bench`, or the same under `~/.cache`."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (folder if folder.is_absolute() else Path("~/.cache").expanduser()) / "holdfast" / "bench"


async def install(peer: Peer) -> Path:
    """Return the `bin` directory of the peer's environment; raise `Unavailable` if it cannot be created."""
    wanted = " ".join((*peer.requires, f"python{sys.version_info.major}.{sys.version_info.minor}"))
    home = cache_directory() / f"{peer.module}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    if not (home / "ready").exists():
        shutil.rmtree(home, ignore_errors=True)
        await _run(sys.executable, "-m", "venv", str(home))
        await _run(
            str(home / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *peer.requires,
        )
        (home / "ready").touch()
    return home / "bin"


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), INSTALL_SECONDS_MAX)
    except TimeoutError:
        process.kill()
        raise Unavailable("installing it took too long.", code="peer_not_installed") from None
    if process.returncode:
        lines = said.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise Unavailable(f"it could not be installed: {lines[-1]}", code="peer_not_installed")
