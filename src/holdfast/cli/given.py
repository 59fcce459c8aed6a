"""What people hand in on the command line: a JSON object as text, from a file or from stdin."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from holdfast.errors import Invalid


def object_of(given: str) -> dict[str, Any]:
    """Read the input option: JSON, @file or - for stdin."""
    import msgspec

    text = given
    if given == "-":
        text = sys.stdin.read()
    elif given.startswith("@"):
        try:
            text = Path(given[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise Invalid(f"The input file cannot be read: {error}.", code="invalid_input") from error
    try:
        body = msgspec.json.decode(text.encode("utf-8", "surrogateescape"))
    except msgspec.DecodeError as error:
        raise Invalid(
            f"The input is not JSON: {error}.",
            code="payload_not_json",
            advice="""Write for example --input '{"order_id": 7}'.""",
        ) from error
    if not isinstance(body, dict):
        raise Invalid(
            f"The input is a JSON {type(body).__name__}, not an object.",
            code="invalid_input",
            advice="""Write for example --input '{"order_id": 7}'.""",
        )
    return body
