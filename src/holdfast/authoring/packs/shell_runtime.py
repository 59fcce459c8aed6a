"""The `shell` runtime: an attempt is one command, run in the killable process of the attempt.

The command belongs to that process's group, so everything that stops the attempt (time limit, cancel, a lost lease, a
dead worker) also stops the command and all its children. The input arrives as JSON on stdin and as `HF_INPUT_…`
variables; values are never part of a shell's text. The command sees only the variables named here, not the worker's,
because those contain the database password.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from holdfast._internal.process_tree import kill_group, leads_group
from holdfast.authoring.context import Context
from holdfast.authoring.packs.parameters import Parameter, filled
from holdfast.authoring.packs.template import as_text, render
from holdfast.core.tasks.signals import Killed

INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER")
OUTPUT_BYTES_MAX = 8 * 1024 * 1024
STDERR_BYTES_SHOWN = 2_000
LOOK_SECONDS = 0.1
GRACE_SECONDS = 2.0
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""The exit codes of a killed command, directly and as a shell reports a child's."""


class CommandFailed(Exception):
    """The command ended with an exit code other than 0, or by a signal; `code` is `exit_N` or `signal_SIGNAME`."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellCommand:
    """The command to run. With `through_shell`, the single text in `argv` goes to `/bin/sh -c` unchanged."""

    argv: tuple[str, ...]
    folder: Path
    parameters: tuple[Parameter, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    inherited: tuple[str, ...] = ()
    through_shell: bool = False
    is_json: bool = False

    def __call__(self, ctx: Context, **task_input: Any) -> Any:
        """Run the command to its end; the output is `{"stdout": …}`, or its JSON if the action says so."""
        values = filled(task_input, self.parameters)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = self._start(ctx, values, out, err)
            try:
                self._wait(ctx, process, json.dumps(values).encode())
            finally:
                self._end(process)
            return self._output(process.returncode, _head(out, OUTPUT_BYTES_MAX + 1), _tail(err))

    def _start(
        self, ctx: Context, values: Mapping[str, Any], out: IO[bytes], err: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        argv = list(self.argv) if self.through_shell else [as_text(render(part, values)) for part in self.argv]
        command = ["/bin/sh", "-c", argv[0]] if self.through_shell else argv
        try:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment(ctx, values),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                process_group=None if leads_group() else 0,
            )
        except (OSError, ValueError) as error:
            raise CommandFailed(f"The command {command[0]!r} cannot be started: {error}", "exit_127") from error

    def _environment(self, ctx: Context, values: Mapping[str, Any]) -> dict[str, str]:
        ours = {name: os.environ[name] for name in (*INHERITED, *self.inherited) if name in os.environ}
        about = {"HF_TASK_ID": ctx.task_id, "HF_ATTEMPT": str(ctx.attempt), "HF_ACTION": ctx.action}
        inputs = {f"HF_INPUT_{name.upper()}": as_text(value) for name, value in values.items() if value is not None}
        return ours | dict(self.environment) | about | {name: text.replace("\0", "") for name, text in inputs.items()}

    def _wait(self, ctx: Context, process: subprocess.Popen[bytes], stdin: bytes) -> None:
        """Wait for the end; pass a stop request on at once, as SIGTERM.

        If the command ignores it, the worker kills it together with this process; outside a worker it is killed here.
        """
        unsent: bytes | None = stdin
        asked_at: float | None = None
        while True:
            try:
                process.communicate(unsent, timeout=LOOK_SECONDS)
                return
            except subprocess.TimeoutExpired:
                unsent = None
            if ctx.is_canceled and asked_at is None:
                asked_at = time.monotonic()
                process.terminate()
            elif asked_at is not None and time.monotonic() > asked_at + GRACE_SECONDS and not leads_group():
                process.kill()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End everything that the command started, including its background processes.

        In the process of an attempt it belongs to that process's group, which is searched; elsewhere, as in a test, it
        has its own group.
        """
        if process.poll() is None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
        kill_group(os.getpid() if leads_group() else process.pid, but=os.getpid())

    def _output(self, code: int, stdout: bytes, stderr: str) -> Any:
        if code in _KILLED:
            raise Killed(f"The command was killed by SIGKILL (out of memory?). {stderr}".strip())
        if code < 0:
            name = signal.Signals(-code).name
            raise CommandFailed(f"The command was killed by {name}. {stderr}".strip(), f"signal_{name}")
        if code:
            raise CommandFailed(f"The command ended with exit code {code}. {stderr}".strip(), f"exit_{code}")
        if len(stdout) > OUTPUT_BYTES_MAX:
            raise CommandFailed(f"validation: the command wrote more than {OUTPUT_BYTES_MAX} bytes", "validation")
        if not self.is_json:
            return {"stdout": stdout.decode(errors="replace")}
        try:
            return json.loads(stdout)
        except ValueError as error:
            raise CommandFailed(f"validation: the command's output is not JSON: {error}", "validation") from error


def _head(file: IO[bytes], bytes_max: int) -> bytes:
    file.seek(0)
    return file.read(bytes_max)


def _tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - STDERR_BYTES_SHOWN))
    return file.read().decode(errors="replace").strip()
