"""Log lines on standard error, for the person who started the server, not for agents."""

from __future__ import annotations

import logging
import sys

from connmgr.printable import visible

MAX_LINE_CHARACTERS = 500


class _Line(logging.Formatter):
    """One line per record, without control characters, because records may quote clients and be read on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        cause = "" if error is None else f": {type(error).__name__}: {error}"
        line = " ".join(f"{record.name}: {record.getMessage()}{cause}".splitlines())
        return visible(f"{record.levelname} {line[:MAX_LINE_CHARACTERS]}")


def log_to_stderr() -> None:
    """Let this process log warnings and errors as lines, in place of the SDK's tracebacks."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
