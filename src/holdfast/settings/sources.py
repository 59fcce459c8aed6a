"""Sources of settings: environment, TOML file and arguments, each read into values by key.

Unknown names are refused with a suggestion, in every source.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import InvalidSettings
from holdfast.settings.option import LOCAL, PREFIX, PRODUCTION, Option

TOML_NAME = "holdfast.toml"
LAUNCHERS = "launchers"
CONFIG_VARIABLE = "HOLDFAST_CONFIG"
LAUNCH_VARIABLES = ("HOLDFAST_LAUNCH_TOKEN", "HOLDFAST_TASK_ID", "HOLDFAST_ATTEMPT", "HOLDFAST_APP")
"""Variables of a launched worker. They are not settings, because they describe one attempt."""
OTHER_VARIABLES = frozenset({CONFIG_VARIABLE, "HOLDFAST_PG_BIN", "HOLDFAST_PG_USER", *LAUNCH_VARIABLES})
OTHER_PREFIXES = ("HOLDFAST_FAILPOINT", "HOLDFAST_TEST_")

# Kubernetes adds these to every container if a service is named "holdfast".
_SERVICE_LINK = re.compile(r"HOLDFAST_(SERVICE_(HOST|PORT).*|PORT_[0-9]+_(TCP|UDP).*)")


def from_environment(options: Iterable[Option], environ: Mapping[str, str]) -> dict[str, Any]:
    """Read the values from the environment, by key; an empty variable counts as not set."""
    options = tuple(options)
    _refuse_unknown_variables(options, environ)
    values: dict[str, Any] = {}
    for option in options:
        for name in (option.variable, *option.aliases):
            text = environ.get(name, "").strip()
            if text and not _is_service_link(name, text):
                values[option.key] = option.read(text, source=name)
                break
    return values


def from_ambient(environ: Mapping[str, str]) -> dict[str, Any]:
    """Read plain ENV, which other programs use too: only `local` has a meaning here."""
    ambient = environ.get("ENV", "").strip()
    return {"env": LOCAL if ambient == LOCAL else PRODUCTION} if ambient else {}


def usual_toml(environ: Mapping[str, str]) -> Path | None:
    """Find the file that the environment names, or else the one in the current directory."""
    if named := environ.get(CONFIG_VARIABLE, ""):
        return Path(named).expanduser()
    usual = Path(TOML_NAME)
    return usual if usual.is_file() else None


def from_toml(options: Iterable[Option], path: Path) -> dict[str, Any]:
    """Read the values from a TOML file, by key."""
    by_key = {option.key: option for option in options}
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidSettings(f"{path} cannot be read: {error}.") from error
    launchers = document.pop(LAUNCHERS, {})
    flat = {name: value for name, value in document.items() if not isinstance(value, dict)}
    sections = {name: value for name, value in document.items() if isinstance(value, dict)}
    flat |= {f"{name}.{field}": part for name, section in sections.items() for field, part in section.items()}
    for key in flat:
        if key not in by_key:
            raise unknown(f"{key} in {path}", key, by_key)
    values = {key: by_key[key].read(value, source=f"{key} in {path}") for key, value in flat.items()}
    return values | ({LAUNCHERS: _profiles(launchers, path)} if launchers else {})


def _profiles(tables: object, path: Path) -> dict[str, dict[str, Any]]:
    """Return the launch profiles as written; each kind of launcher checks its own profile."""
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise InvalidSettings(
            f"{LAUNCHERS} in {path} must be tables.", advice="Write [launchers.NAME] and kind = …", setting=LAUNCHERS
        )
    return tables


def from_arguments(options: Iterable[Option], arguments: Mapping[str, object]) -> dict[str, Any]:
    """Read the values given as arguments, by flat name; `None` counts as not given."""
    by_name = {option.flat_name: option for option in options}
    for name in arguments:
        if name not in by_name:
            raise unknown(f"The argument {name}", name, by_name)
    by_option = {by_name[name]: value for name, value in arguments.items() if value is not None}
    return {option.key: option.read(value, source=option.flat_name) for option, value in by_option.items()}


def unknown(what: str, name: str, known: Iterable[str]) -> InvalidSettings:
    """Build the error for an unknown name, with the closest known one."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    listed = "`make docs` in a checkout of Holdfast writes docs/reference/settings.md, which lists all settings."
    advice = f"Did you mean {near[0]}?" if near else listed
    return InvalidSettings(f"{what} is not a setting.", code="unknown_setting", advice=advice, setting=name)


def _refuse_unknown_variables(options: tuple[Option, ...], environ: Mapping[str, str]) -> None:
    known = {option.variable for option in options} | OTHER_VARIABLES
    for name in sorted(environ):
        is_ours = name.startswith(PREFIX) and name not in known and not name.startswith(OTHER_PREFIXES)
        if is_ours and not _is_service_link(name, environ[name]):
            raise unknown(name, name, known)


def _is_service_link(name: str, text: str) -> bool:
    return bool(_SERVICE_LINK.fullmatch(name)) or (name == "HOLDFAST_PORT" and text.startswith("tcp://"))
