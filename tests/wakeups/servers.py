"""Real servers on loopback that may be stopped without mercy: a Redis, and one that speaks SQS.

The one for SQS is large, so it lives in an environment of its own in the user's cache: made once, under a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from tests.waiting import poll

START_SECONDS_MAX = 60.0
SQS_PACKAGES = ("ministack==1.5.33",)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A program that listens on a port of loopback; the same port each time it is started."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {}

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=os.environ | self.environment(),
            )
        poll(self._answers, seconds_max=START_SECONDS_MAX)

    def _answers(self) -> bool:
        assert self.process is None or self.process.poll() is None, (self.folder / "log").read_text()
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        """Kill it: nothing is saved, nobody is told."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class RedisServer(Server):
    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        options = {"--port": str(self.port), "--bind": "127.0.0.1", "--save": "", "--appendonly": "no"}
        return ["redis-server", *(word for option in options.items() for word in option)]


class SqsServer(Server):
    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return [str(sqs_home() / "bin" / "ministack")]

    def environment(self) -> dict[str, str]:
        address = {"BIND_HOST": "127.0.0.1", "MINISTACK_HOST": "127.0.0.1", "GATEWAY_PORT": str(self.port)}
        return address | {"SERVICES": "sqs", "SFTP_ENABLED": "0", "IOT_MTLS_ENABLED": "0", "PYTHONPATH": ""}


def sqs_home() -> Path:
    """The environment of the SQS server, installed when first asked for."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))
    cache = (folder if folder.is_absolute() else Path("~/.cache").expanduser()) / "holdfast" / "tests"
    wanted = " ".join((*SQS_PACKAGES, f"python{sys.version_info.major}.{sys.version_info.minor}"))
    home = cache / f"sqs-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    if (home / "ready").exists():
        return home
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "ready").exists():
            shutil.rmtree(home, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, capture_output=True)
            pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            done = subprocess.run([*pip, *SQS_PACKAGES], capture_output=True, text=True)
            assert not done.returncode, f"could not install {SQS_PACKAGES}: {done.stderr[-2000:]}"
            with contextlib.suppress(FileExistsError):
                (home / "ready").touch()
    return home
