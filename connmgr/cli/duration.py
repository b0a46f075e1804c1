"""Options whose values are durations."""

from __future__ import annotations

import math

import click

from connmgr.durations import FORMS, parse_duration


class Duration(click.ParamType):  # type: ignore[type-arg]  # it takes no argument before click 8.4
    """A duration such as 90, 90s, 30m, 1h30m or 1d; loaded as seconds, from ``least`` to ``most``.

    Without a ``least`` it must be more than nothing.
    """

    name = "time"

    def __init__(self, most: float = math.inf, *, least: float | None = None) -> None:
        self._least, self._most = least, most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = parse_duration(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a duration: give {FORMS}.", param, ctx)
        if self._least is None and not seconds:
            self.fail(f"{value!r} is too short: more than 0s.", param, ctx)
        if self._least is not None and seconds < self._least:
            self.fail(f"{value!r} is too short: at least {in_units(self._least)}.", param, ctx)
        if seconds > self._most:
            self.fail(f"{value!r} is too long: at most {in_units(self._most)}.", param, ctx)
        # Members of requests that count whole seconds refuse 60.0.
        return int(seconds) if seconds.is_integer() else seconds


def in_units(seconds: float) -> str:
    """Return a duration in the largest unit that is whole in it, such as ``90d``."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size:g}{unit}"
    return f"{seconds:g}s"
