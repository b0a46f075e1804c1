"""The log on stderr: one line per event for people, or one JSON object for programs."""

from __future__ import annotations

import json
import logging
import re
from datetime import datetime, timezone

# Made once, because making an encoder takes longer than encoding.
_ENCODER = json.JSONEncoder(default=str)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def start_logging(level: str, style: str) -> None:
    """Log messages of ``level`` and above to stderr, in the ``style`` ``text`` or ``json``."""
    output = logging.StreamHandler()
    output.setFormatter(JsonLines() if style == "json" else TextLines())
    # Below warnings, libraries log nothing useful, and perhaps secrets.
    logging.basicConfig(handlers=[output], level=logging.WARNING)
    logging.getLogger("connmgr").setLevel(level.upper())
    # The lines do not contain these values, which logging would look up for each line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # A closed stderr must not end the daemon.
    logging.raiseExceptions = False


class TextLines(logging.Formatter):
    """Time, level, origin and message in one line; a traceback follows indented."""

    def format(self, record: logging.LogRecord) -> str:
        lines = [f"{self.formatTime(record)} {record.levelname} {record.name}: {record.getMessage()}"]
        if record.exc_info:
            lines += [f"    {line}" for line in self.formatException(record.exc_info).splitlines()]
        return "\n".join(_CONTROL.sub(_escaped, line) for line in lines)


class JsonLines(logging.Formatter):
    """One JSON object per line: ``time``, ``level``, ``logger``, and ``message`` or the properties of a request."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        entry = {"time": moment.replace("+00:00", "Z"), "level": record.levelname.lower(), "logger": record.name}
        facts = getattr(record, "facts", None)
        entry |= (
            {name: value for name, value in facts.items() if value is not None}
            if facts
            else {"message": record.getMessage()}
        )
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return _ENCODER.encode(entry)


def _escaped(control: re.Match[str]) -> str:
    return ascii(control[0])[1:-1]
