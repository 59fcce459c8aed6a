"""Parsing of input on the command line: a JSON object, a file, standard input, or key=value."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from holdfast.errors import Invalid


def object_of(option_text: str) -> dict[str, Any]:
    """Read the input option: a JSON object, @file or - for stdin."""
    body = value_of(option_text)
    if not isinstance(body, dict):
        raise Invalid(
            f"The input is a JSON {type(body).__name__}, not an object.",
            code="invalid_input",
            advice="""Write for example --input '{"order_id": 7}'.""",
        )
    return body


def value_of(option_text: str, *, option: str = "--input") -> Any:
    """Read an option that may be any JSON value: literal, @file or - for stdin."""
    import msgspec

    text = option_text.encode("utf-8", "surrogateescape")
    if option_text == "-":
        text = sys.stdin.buffer.read()
    elif option_text.startswith("@"):
        try:
            text = Path(option_text[1:]).read_bytes()
        except OSError as error:
            raise Invalid(f"The input file cannot be read: {error}.", code="invalid_input") from error
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(
            f"The input is not JSON in UTF-8: {error}.",
            code="payload_not_json",
            advice=f"""Write for example {option} '{{"order_id": 7}}'.""",
        ) from error


def pairs_of(pairs: Iterable[str]) -> dict[str, Any]:
    """Read `key=value` pairs: a value that is valid JSON is decoded, any other is text."""
    import msgspec

    found: dict[str, Any] = {}
    for pair in pairs:
        key, is_pair, text = pair.partition("=")
        if not is_pair or not key:
            raise Invalid(
                f"{pair!r} is not key=value.", code="invalid_input", advice="Write for example day=2026-11-15."
            )
        try:
            found[key] = msgspec.json.decode(text.encode("utf-8", "surrogateescape"))
        except (msgspec.DecodeError, UnicodeDecodeError):
            found[key] = text
    return found
