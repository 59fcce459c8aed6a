"""The home directory of an embedded database, and its file layout.

    pg18/         the data, a folder per major version
    run/          the socket
    server.json   what was started last, and how
    postgres.log  the log of PostgreSQL
    users.lock    shared by all processes that use the server
    server.lock   held by the process that starts the server, then by the keeper and all of PostgreSQL
    keeper.lock   held by the keeper

Started by root, PostgreSQL may be unable to enter the home. Then all of the above is in a folder below
/var/lib/holdfast, and the home has only `elsewhere.json`, which points there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import InvalidSettings
from holdfast.store.embedded.account import Account, can_enter, make_passable

ELSEWHERE = Path("/var/lib/holdfast")
NOTE_NAME = "elsewhere.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class HomePaths:
    """The paths of one home's files: in `root`, which is the home itself unless that is closed to PostgreSQL."""

    home: Path
    root: Path

    @property
    def users_lock(self) -> Path:
        return self.root / "users.lock"

    @property
    def server_lock(self) -> Path:
        return self.root / "server.lock"

    @property
    def keeper_lock(self) -> Path:
        return self.root / "keeper.lock"

    @property
    def record(self) -> Path:
        return self.root / "server.json"

    @property
    def log(self) -> Path:
        return self.root / "postgres.log"

    def data(self, major: int) -> Path:
        return self.root / f"pg{major}"

    def major(self) -> int | None:
        """Return the newest major version that has data here."""
        names = (re.fullmatch(r"pg(\d+)", path.name) for path in self.root.glob("pg*"))
        return max((int(name[1]) for name in names if name), default=None)


def locate(home: Path) -> HomePaths:
    """Find the files of a home without creating anything."""
    home = _absolute(home)
    try:
        return HomePaths(home=home, root=_elsewhere(home) or home)
    except OSError as error:
        raise unusable(home, error.strerror or str(error)) from error


def prepare(home: Path, account: Account | None) -> HomePaths:
    """Create the home if needed and find its files, in a folder that the account may enter."""
    home = _absolute(home)
    try:
        # The account only has to traverse it; the folders inside are private to it.
        home.mkdir(parents=True, exist_ok=True, mode=0o700 if account is None else 0o711)
        root = _elsewhere(home)
        if root is None and account is not None and not can_enter(account, home):
            root = _move_elsewhere(home, account)
    except OSError as error:
        raise unusable(home, error.strerror or str(error)) from error
    return HomePaths(home=home, root=root or home)


def _absolute(home: Path) -> Path:
    try:
        absolute = home.expanduser().resolve()
    except (OSError, RuntimeError) as error:
        raise unusable(home, str(error)) from error
    if "\n" in str(absolute):  # PostgreSQL's own files have the path on one line
        raise unusable(home, "its name has a line break")
    return absolute


def _elsewhere(home: Path) -> Path | None:
    """Return where an earlier start put the files of this home, if not into the home itself."""
    note_path = home / NOTE_NAME
    try:
        note = json.loads(note_path.read_bytes())
        named, root = str(note["home"]), Path(note["root"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise unusable(home, f"{note_path} is damaged") from error
    if named != str(home):
        # Sharing the original's data under a second name would surprise; starting empty would look like data loss.
        raise InvalidSettings(
            f"{home} is a copy of {named}, but its data are not in it: they are in {root}.",
            code="embedded_home_copied",
            advice=f"Copy them to {_slug(home)} and delete {note_path}; without the copy it starts empty.",
        )
    if not root.is_dir():
        raise InvalidSettings(
            f"The data of {home} were in {root}, which is gone.",
            code="embedded_data_gone",
            advice=f"Restore it, or delete {note_path} to start empty.",
        )
    return root


def _move_elsewhere(home: Path, account: Account) -> Path:
    if any(home.glob("pg[0-9]*")):
        raise InvalidSettings(
            f"{home} holds data, but the account {account.name} may no longer enter it.",
            code="embedded_home_closed",
            advice="Let it pass (chmod o+x on the directories above), or move the home to where it may.",
        )
    root = _slug(home)
    make_passable(root)  # before the note: a note without its folder means lost data
    write_atomically(home / NOTE_NAME, json.dumps({"home": str(home), "root": str(root)}))
    return root


def _slug(home: Path) -> Path:
    return ELSEWHERE / folder_name(home)


def folder_name(path: Path) -> str:
    """Return a folder name that identifies another folder: `shop-1f0c…`."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", path.name)[:24].strip("-") or "home"
    return f"{readable}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"


def write_atomically(path: Path, text: str) -> None:
    """Replace a small file so that a reader sees the old or the new text, never a part."""
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    Path(draft).replace(path)


def unusable(home: Path, reason: str) -> InvalidSettings:
    """Build the error for an unusable home, with what to set instead."""
    return InvalidSettings(
        f"{home} cannot be the home of an embedded database: {reason}.",
        code="embedded_home_unusable",
        advice="Set HOLDFAST_HOME to a directory you may write, or HOLDFAST_URL to a database of your own.",
    )
