"""The page about security shows the table of roles as it is, and its commands name what exists."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.core.identity.access import ROLES, Access
from holdfast.core.limits.token_bucket import BURST, PER_SECOND
from holdfast.server.auth.dev_sign_in import DEV_HEADER
from holdfast.settings.settings import INTERNAL_PORT, AuthSettings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text()
COLUMNS = (Access.VIEWER, Access.OPERATOR, Access.ADMIN, Access.WORKER)


def test_the_table_of_roles_is_the_one_in_use():
    rows = re.findall(r"^\| (\w+) \|([^\n]*)\|$", PAGE.partition("## Who may what")[2], re.MULTILINE)
    shown = {role: tuple("●" in cell for cell in cells.split("|")) for role, cells in rows if role in ROLES}
    assert shown == {role.value: tuple(access in may for access in COLUMNS) for role, may in ROLES.items()}


def test_its_numbers_are_those_in_use():
    assert f"({AuthSettings().token_cache_seconds:g} by default)" in PAGE
    assert (BURST, PER_SECOND * 60) == (10, 10) and "ten wrong credentials at once and ten a minute" in PAGE
    assert f"({INTERNAL_PORT})" in PAGE and f"`{DEV_HEADER}: anna`" in PAGE
