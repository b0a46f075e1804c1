"""The output of commands: JSON for programs, tables for people."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any, TypeVar

import click

from connmgr.printable import visible

Command = TypeVar("Command", bound=Callable[..., Any])

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


def json_option(command: Command) -> Command:
    """Give a command the flag ``--json``, as its argument ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, callback=_asked_anywhere, help="Print JSON.")(command)


def _asked_anywhere(context: click.Context, _: click.Parameter, given: bool) -> bool:
    """Whether ``--json`` stands after the command or before it."""
    return given or bool(context.find_root().params.get("as_json"))


def print_json(value: Any, indent: int | None = 2) -> None:
    r"""Print a value as JSON; characters that control or reorder a terminal's text become ``\uXXXX``."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    click.echo(_UNUSUAL.sub(lambda found: found[0] if found[0].isprintable() else _escaped(found[0]), text))


def _escaped(character: str) -> str:
    return re.sub("(.{4})", r"\\u\1", character.encode("utf-16-be", "surrogatepass").hex())


def print_table(rows: Sequence[Sequence[str]], indent: str = "", *, err: bool = False) -> None:
    """Print rows in columns."""
    cells = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    if cells:
        # All at once: printing a line takes longer than making it.
        click.echo("\n".join(f"{indent}{line.rstrip()}" for line in lines), err=err)


def on_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def counted(number: int, noun: str) -> str:
    """Return ``1 connection``, ``2 connections``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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


def summarised(state: dict[str, Any]) -> str:
    """Return the last known state of a connection in a few words."""
    if state.get("running") is False:
        return "gone" if state.get("gone") else "stopped"
    if "error" in state:
        return str(state["error"])
    return str(state.get("osName") or ("running" if state.get("running") else ""))
