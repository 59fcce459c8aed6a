"""Source locations for errors in flow code: the innermost line outside the holdfast package."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType, TracebackType
from typing import NamedTuple

from holdfast.errors import Invalid

_PACKAGE_DIRECTORY = str(Path(__file__).resolve().parents[2]) + os.sep


class SourceLine(NamedTuple):
    """A line of a file."""

    file: str
    number: int


def calling_line() -> SourceLine | None:
    """Return the line that called into the holdfast package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE_DIRECTORY):
        frame = frame.f_back
    return None if frame is None else SourceLine(frame.f_code.co_filename, frame.f_lineno)


def raising_line(trace: TracebackType | None) -> SourceLine | None:
    """Return the line of user code that an exception came from."""
    found = None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_PACKAGE_DIRECTORY):
            found = SourceLine(file, trace.tb_lineno)
        trace = trace.tb_next
    return found


def with_location(error: Invalid, line: SourceLine | None) -> Invalid:
    """Return a copy of the error whose message begins with `file:line`."""
    if line is None:
        return error
    fields = {**error.fields, "file": line.file, "line": line.number}
    location = f"{Path(line.file).name}:{line.number}"
    return Invalid(f"{location}: {error.detail}", code=error.code, advice=error.advice, **fields)
