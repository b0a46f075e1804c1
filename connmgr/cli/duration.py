"""Times as people write them."""

from __future__ import annotations

import re

import click

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WRITTEN = re.compile(r"(\d{1,9})([smhd])")


class Duration(click.ParamType):  # type: ignore[type-arg]  # it takes no argument before click 8.4
    """A time such as 90s, 30m, 1h or 1d; loaded as seconds, at most ``longest``."""

    name = "time"

    def __init__(self, longest: float) -> None:
        self._longest = longest

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        written = _WRITTEN.fullmatch(str(value))
        seconds = int(written[1]) * _UNITS[written[2]] if written else 0
        if not 0 < seconds <= self._longest:
            self.fail(f"{value!r} is no time from 1s to {self._longest // 86400:g}d, such as 30m or 1h.", param, ctx)
        return seconds
