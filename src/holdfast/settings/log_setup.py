"""Log set-up of a process: destination, level, and format (plain lines, or one JSON object per line).

Only Holdfast's own commands set up logging, and only if the app did not: a library leaves logging to its program.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from holdfast.settings.sections import JSON, LogSettings

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s[%(process)d] %(message)s"


class JsonFormatter(logging.Formatter):
    """One object per line: time, level, logger, pid, message, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False, default=str)


def set_up(settings: LogSettings) -> None:
    """Log to stderr according to the settings, unless the program has already set up logging."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.format == JSON else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=settings.level.upper(), handlers=[handler])
