"""Input keys of a node: `day`, or `images[0]` for one index of a list port."""

from __future__ import annotations

import re
from dataclasses import dataclass

KEY_CHARACTERS_MAX = 128
LIST_ITEMS_MAX = 100_000

_SLOT = re.compile(r"([^\[\]]+)(?:\[(0|[1-9][0-9]{0,9})\])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """An input that a node declares."""

    key: str
    is_list: bool = False
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Slot:
    """One part of an input: a key, or one index of a list port."""

    key: str
    index: int | None = None


def slot_of(input_key: object) -> Slot | None:
    """Parse an input key such as `day` or `images[0]`; None if it is not valid."""
    found = _SLOT.fullmatch(input_key) if isinstance(input_key, str) else None
    if found is None or not is_key(found[1]):
        return None
    index = None if found[2] is None else int(found[2])
    return None if index is not None and index >= LIST_ITEMS_MAX else Slot(found[1], index)


def output_slot_of(input_key: object) -> Slot | None:
    """Parse a key of the run's output: as above, or empty for the whole output, or `[0]` for an index of a
    whole list.
    """
    if input_key == "":
        return Slot("")
    slot = slot_of(f"_{input_key}") if isinstance(input_key, str) and input_key.startswith("[") else None
    return slot_of(input_key) if slot is None else Slot("", slot.index)


def is_key(key: object) -> bool:
    """Return whether this can name an input or a field of an output: 1 to 128 printable characters, not blank."""
    return isinstance(key, str) and bool(key.strip()) and key.isprintable() and len(key) <= KEY_CHARACTERS_MAX
