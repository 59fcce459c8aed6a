"""Source locations for errors in flow code: the innermost line outside this package."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType, TracebackType
from typing import NamedTuple

from holdfast.errors import Invalid

_OURS = str(Path(__file__).resolve().parents[2])


class SourceLine(NamedTuple):
    """A line of a file."""

    file: str
    number: int


def calling_line() -> SourceLine | None:
    """Return the line that called into this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return None if frame is None else SourceLine(frame.f_code.co_filename, frame.f_lineno)


def raising_line(trace: TracebackType | None) -> SourceLine | None:
    """Return the line of user code that an exception came from."""
    found = None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_OURS):
            found = SourceLine(file, trace.tb_lineno)
        trace = trace.tb_next
    return found


def located(error: Invalid, line: SourceLine | None) -> Invalid:
    """Return the same error, prefixed with this line."""
    if line is None:
        return error
    fields = {**error.fields, "file": line.file, "line": line.number}
    where = f"{Path(line.file).name}:{line.number}"
    return Invalid(f"{where}: {error.detail}", code=error.code, advice=error.advice, **fields)
