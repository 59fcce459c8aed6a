"""Where guards are: what in a statement or a function looks like one, and is on no list."""

from __future__ import annotations

import re
from collections.abc import Iterable

from holdfast.store.migrate import known

CHANGES = re.compile(r"\b(insert into|update holdfast|delete from|setval|for update|for no key update|for key share)\b")
_ASSIGNMENTS = re.compile(r"\bset\b(?! local).*?(?=\bwhere\b|\bfrom\b|\breturning\b|\Z)", re.DOTALL)
_RETURNED = re.compile(r"\breturning\b[^()]*?(?=\n\)|\Z)", re.DOTALL)
_INSERTED = re.compile(r"insert into [\w.]+ (?:as \w+ )?\([^)]*\)", re.DOTALL)
_GUARDS = re.compile(
    r"\bstate (?:=|<>|in) |\blease_token (?:=|<>) |\battempt = |\blease_expires_at (?:>|<=)"
    r"|\bcancel_at (?:<=|is not null then)"
    r"|\bdue_at <=|\bbeat_at <|\bended_at <|\bpaused_at is|\btenant_id = (?:\$|in_tenant)|\b_lease = |\bskip locked"
    r"|\bfor (?:no key )?update|\bfor key share"
    r"|\bon conflict .*do nothing|\bis_retrying\b(?= *$)|_advisory_"
)
_DEFINED = re.compile(
    r"^create (?:or replace )?function holdfast\.(\w+)\((?:(?!^create ).)*?\$\$(.*?)\$\$", re.DOTALL | re.M
)


def functions() -> dict[str, str]:
    """The bodies of the schema's functions that change something, each as the last migration that has it says."""
    bodies = {name: body for one in known() for name, body in _DEFINED.findall(one.script)}
    return {name: body for name, body in bodies.items() if CHANGES.search(body)}


def unlisted(original: str, listed: Iterable[str]) -> tuple[list[str], str]:
    """The guards left in a text without its listed ones, assignments and column lists; and what is left of the text."""
    text = original
    for words in listed:
        start = original.index(words)
        text = text[:start] + " " * len(words) + text[start + len(words) :]
    for part in (_INSERTED, _ASSIGNMENTS, _RETURNED):
        text = part.sub(" ", text)
    return _GUARDS.findall(text), text
