"""Run a command on a PostgreSQL with default settings, as an ordinary role, in HOLDFAST_TEST_URL.

    python tools/stock_server.py PG_BIN COMMAND…

The server is made by `initdb` and nothing else: no setting is changed but where it listens. The role may create
databases, which the tests need, and nothing more; an administrator has run the two statements that docs/deploy.md asks
for. Where PG_BIN is not there, the embedded programs serve. Server and data are gone afterwards.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import asyncpg

from holdfast.store.embedded import binaries

ROLE = "ordinary"
ADMINISTRATION = (
    f"create role {ROLE} login createdb",
    "create role holdfast_tenant nologin",
    f"grant holdfast_tenant to {ROLE}",
    f"create database {ROLE} owner {ROLE}",
)


def main(programs: Path, command: list[str]) -> int:
    account = _account()
    home = Path(tempfile.mkdtemp(prefix="holdfast-stock-"))
    home.chmod(0o755)
    data, run = home / "data", home / "run"
    for folder in (data, run):
        folder.mkdir()
        if account is not None:
            os.chown(folder, account.pw_uid, account.pw_gid)

    def postgres(program: str, *flags: str) -> None:
        done = subprocess.run(
            [str(programs / program), *flags],
            user=None if account is None else account.pw_uid,
            group=None if account is None else account.pw_gid,
            extra_groups=None if account is None else [],
            cwd=home,
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"{program}: {done.stdout}{done.stderr}")

    postgres("initdb", "--pgdata", str(data), "--username", "postgres", "--auth", "trust", "--encoding", "UTF8")
    listen = f"-c listen_addresses='' -c unix_socket_directories='{run}'"
    postgres("pg_ctl", "--pgdata", str(data), "--wait", "--log", str(run / "log"), "--options", listen, "start")
    try:
        asyncio.run(_administer(f"postgresql://postgres@/postgres?host={run}&port=5432"))
        url = f"postgresql://{ROLE}@/{ROLE}?host={run}&port=5432"
        return subprocess.run(command, env={**os.environ, "HOLDFAST_TEST_URL": url}).returncode
    finally:
        postgres("pg_ctl", "--pgdata", str(data), "--wait", "--mode", "immediate", "stop")
        shutil.rmtree(home, ignore_errors=True)


async def _administer(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        print(f"PostgreSQL {await connection.fetchval('show server_version')}, default settings, ordinary role")
        for statement in ADMINISTRATION:
            await connection.execute(statement)
    finally:
        await connection.close()


def _account() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root."""
    if os.getuid():
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise SystemExit("Neither `postgres` nor `nobody` is an account here; run this as an ordinary user.")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    wanted = Path(sys.argv[1])
    raise SystemExit(main(wanted if wanted.is_dir() else binaries.find(os.environ).directory, sys.argv[2:]))
