"""How commands print values and read times: JSON for programs, tables for people, files for this user alone."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from connmgr.cli.exits import Failure
from connmgr.paths import write_file
from connmgr.printable import visible

if TYPE_CHECKING:
    from connmgr.client import ClientError

Item = TypeVar("Item")

_UNUSUAL = re.compile(r"[^\n -~]")
"""Characters that may not be printable; testing each character would take longer than all the rest."""

_STEPS = ((60, "s"), (60, "min"), (24, "h"), (365, "d"))


def command_text(command: str | Sequence[str]) -> str:
    """Return a command, or an argv as the text of a command."""
    if isinstance(command, str):
        return command
    # Imported here, because other commands do not need it.
    import shlex

    return shlex.join(command)


def _asked_anywhere(context: click.Context, _: click.Parameter, value: bool) -> bool:
    """Whether ``--json`` stands after the command or before it."""
    return value or bool(context.find_root().params.get("as_json"))


json_option = click.option("--json", "as_json", is_flag=True, callback=_asked_anywhere, help="Print JSON.")


def print_json(value: Any, indent: int | None = 2) -> None:
    r"""Print a value, which may have messages of the contract in it, as JSON.

    Characters that control or reorder a terminal's text become ``\uXXXX``.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=_members)
    click.echo(_UNUSUAL.sub(lambda match: match[0] if match[0].isprintable() else _escape(match[0]), text))


def _members(message: Any) -> dict[str, Any]:
    # Imported here, because a command with a message to print has loaded it, and others need not.
    from connmgr.contract.message import to_json

    return to_json(message)


def _escape(character: str) -> str:
    return re.sub("(.{4})", r"\\u\1", character.encode("utf-16-be", "surrogatepass").hex())


def print_table(rows: Sequence[Sequence[str]], indent: str = "", *, err: bool = False) -> None:
    """Print rows in columns."""
    cells = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    if cells:
        # All at once: printing a line takes longer than making it.
        click.echo("\n".join(f"{indent}{line.rstrip()}" for line in lines), err=err)


def print_list(items: Sequence[Item], row: Callable[[Item], Sequence[str]], *, as_json: bool) -> None:
    """Print a table with a ``row`` for each of ``items``, or all of them as JSON."""
    if as_json:
        print_json(items)
    else:
        print_table([row(item) for item in items])


def tell_waiting(error: ClientError) -> None:
    """Say that a command waits for what was away, such as a daemon that restarts."""
    click.echo(f"connmgr: {visible(error.message)} Waiting.", err=True)


def plural(number: int, noun: str) -> str:
    """Return ``1 connection``, ``2 connections``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def amount(size: float, *, binary: bool = False) -> str:
    """Return a number of bytes in its largest unit, such as ``1.5 MB``, or ``1.4 MiB`` if ``binary``."""
    step, units = (1024, ("B", "KiB", "MiB", "GiB")) if binary else (1000, ("B", "kB", "MB", "GB"))
    for unit in units:
        if size < step:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= step
    return f"{size:.1f} {'TiB' if binary else 'TB'}"


def ago(moment: datetime) -> str:
    """Return how long ago ``moment`` was, such as ``5 min ago``."""
    return f"{lasting(max(0.0, (datetime.now(timezone.utc) - moment).total_seconds()))} ago"


def lasting(seconds: float) -> str:
    """Return a duration in its largest unit, such as ``5 min``."""
    for size, unit in _STEPS:
        if seconds < size:
            return f"{int(seconds)} {unit}"
        seconds /= size
    return f"{int(seconds)} y"


class Duration(click.ParamType):  # type: ignore[type-arg]  # it takes no argument before click 8.4
    """A duration such as 90, 90s, 30m, 1h30m or 1d; loaded as seconds, from ``least`` to ``most``.

    Without a ``least`` it must be more than nothing.
    """

    name = "time"

    def __init__(self, most: float = math.inf, *, least: float | None = None) -> None:
        self._least, self._most = least, most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        # Imported here, because most commands are given no time.
        from connmgr.durations import FORMS, parse_duration

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


def check_new(path: Path, *, force: bool) -> None:
    """Check that :func:`write_private` may write ``path``, before what it shall contain is made.

    :raises Failure: its directory is missing, or it exists; with ``force``, if it is anything but a regular file.
    """
    if not path.parent.is_dir():
        raise Failure(f"{path} cannot be written: {path.parent} is not a directory.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise Failure(f"{path} cannot be written: {path.parent} is not writable for you.")
    if not os.path.lexists(path):
        return
    if not force:
        raise Failure(f"{path} exists already: choose another file, or overwrite it with --force.")
    if not stat.S_ISREG(path.lstat().st_mode):
        raise Failure(f"{path} is not a regular file, and is not overwritten: choose another file.")


def write_private(path: Path, text: str, *, replaces: bool = True) -> None:
    """Write ``text`` to ``path`` as :func:`connmgr.paths.write_file` does; missing directories are created.

    :raises Failure: it cannot be written, or exists although it is not to be replaced.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(path, text.encode(), replaces=replaces)
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror}") from error
