"""What the server writes to standard error: lines for whoever started it, and for no agent."""

from __future__ import annotations

import logging
import sys

from connmgr.printable import visible

MAX_LINE_CHARACTERS = 500


class _Line(logging.Formatter):
    """One line a record: what clients send may be in it, and who reads it may show it on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        cause = "" if error is None else f": {type(error).__name__}: {error}"
        line = " ".join(f"{record.name}: {record.getMessage()}{cause}".splitlines())
        return visible(f"{record.levelname} {line[:MAX_LINE_CHARACTERS]}")


def log_to_stderr() -> None:
    """Have this process log warnings and errors, in place of the tracebacks that the SDK writes."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
