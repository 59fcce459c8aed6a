"""The operating-system account that PostgreSQL runs under.

PostgreSQL refuses to run as root. An ordinary user runs it as itself; root runs it under an unprivileged account. Paths
that this account cannot reach are worked around, never opened: this module changes no mode or owner of anything that
Holdfast did not create.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import InvalidSettings

FALLBACK_NAMES = ("postgres", "nobody")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An unprivileged account under which root starts PostgreSQL; an ordinary user needs none (`None`)."""

    name: str
    uid: int
    gid: int


def choose(environment: Mapping[str, str]) -> Account | None:
    """Choose `$HOLDFAST_PG_USER`, else postgres, else nobody; `None` unless this process is root."""
    if os.geteuid() != 0:
        return None
    wanted = environment.get("HOLDFAST_PG_USER")
    for name in [wanted] if wanted else FALLBACK_NAMES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid)
    missing = wanted or " or ".join(FALLBACK_NAMES)
    raise InvalidSettings(
        f"PostgreSQL does not run as root, and there is no lesser account {missing}.",
        code="embedded_account_missing",
        advice="Name an ordinary account in HOLDFAST_PG_USER, or run Holdfast as an ordinary user.",
    )


def owner_of(data: Path) -> Account | None:
    """Return the account that existing data must run under: their owner, whatever `choose` returns today."""
    if os.geteuid() != 0:
        return None
    found = data.stat()
    if found.st_uid == 0:
        raise InvalidSettings(
            f"The data in {data} belong to root, and PostgreSQL does not run as root.",
            code="embedded_data_owner",
            advice=f"If they were copied, give them to the database account: chown -R postgres {data}",
        )
    return Account(name=str(found.st_uid), uid=found.st_uid, gid=found.st_gid)


def can_enter(account: Account, path: Path) -> bool:
    """Return whether the account may enter a directory or run a program, tested as that account."""
    probe = run(["/bin/sh", "-c", 'test -x "$1"', "sh", str(path)], account=account, seconds_max=10)
    return probe.returncode == 0


def give(path: Path, account: Account | None) -> None:
    """Give a new file or directory to the account."""
    if account is not None:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)


def make_passable(directory: Path) -> None:
    """Create a directory, and its missing parents, that every account may traverse but not list."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        path.chmod(0o711)  # the umask may have reduced mkdir's own mode


def run(
    command: Sequence[str | Path],
    *,
    account: Account | None,
    seconds_max: float,
    stdin: str = "",
    keep_open: Sequence[int] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end under the account; `keep_open` descriptors stay open as long as it runs."""
    return subprocess.run(
        command,
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=seconds_max,
        env=plain_environment(),
        cwd="/",
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        pass_fds=keep_open,
        check=False,
    )


_PASSED = ("PATH", "HOME", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")
_PASSED_PREFIXES = ("MALLOC_", "ASAN_", "LSAN_", "UBSAN_")


def plain_environment() -> dict[str, str]:
    """Return the environment that PostgreSQL's programs need, with a locale that every system has.

    Nothing else is passed on: the unprivileged account can read the environment in /proc, and the caller's may contain
    tokens, passwords and URLs.
    """
    passed = {name: value for name, value in os.environ.items() if name in _PASSED or name.startswith(_PASSED_PREFIXES)}
    return passed | {"LC_ALL": "C"}
