"""Durations as people write them: ``30s``, ``5m``, ``1h30m``, or plain seconds; and a clock for long ones."""

from __future__ import annotations

import re
import time

FORMS = "seconds, or a time such as 30s, 5m, 1h30m or 2d"

_UNITS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "min": 60.0, "s": 1.0}
_NUMBER = r"\d{1,12}(?:\.\d{1,9})?"
_SECONDS = re.compile(rf"{_NUMBER}|\.\d{{1,9}}", re.ASCII)
_PART = re.compile(rf"({_NUMBER})(w|d|h|min|m|s)", re.ASCII)
_PARTS = re.compile(rf"(?:{_NUMBER}w)?(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m(?:in)?)?(?:{_NUMBER}s)?", re.ASCII)


def boot_time() -> float:
    """Return seconds of a clock that nobody sets; where the system has one, it goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def parse_duration(text: str) -> float:
    """Return the seconds that ``text`` stands for: a plain number, or numbers with w, d, h, m and s, in this order.

    :raises ValueError: it has neither form; the message names both.
    """
    written = text.strip()
    if _SECONDS.fullmatch(written):
        return float(written)
    if not written or not _PARTS.fullmatch(written):
        raise ValueError(f"not a duration: give {FORMS}")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(written))
