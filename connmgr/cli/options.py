"""The daemon's settings as options of a command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field
from pathlib import Path
from typing import Any, TypeVar

import click

from connmgr.cli.duration import in_units
from connmgr.settings import Settings, load, options

Command = TypeVar("Command", bound=Callable[..., Any])


def setting_options(*names: str) -> Callable[[Command], Command]:
    """Give a command the options of the settings ``names``, or of all settings, and ``--config``.

    The command takes them as keyword arguments for :func:`read_settings`.
    """
    wanted = [option for option in options() if not names or option.name in names]

    def decorate(command: Command) -> Command:
        config = click.option("--config", metavar="FILE", help="Configuration file, instead of config.toml.")
        command = config(command)
        for option in reversed(wanted):
            command = _option(option)(command)
        return command

    return decorate


def read_settings(given: dict[str, Any]) -> Settings:
    """Return the settings that the options ``given`` to a command make, or raise :class:`StartupError`."""
    flags = dict(given)
    config = flags.pop("config")
    return load(flags, config=Path(config) if config is not None else None)


def _option(option: Field[Any]) -> Callable[[Command], Command]:
    name = f"--{option.name.replace('_', '-')}"
    shown = "" if option.default in (None, "", (), False) else f"  [default: {_shown(option)}]"
    text = option.metadata["help"] + shown
    if option.default is False:
        return click.option(name, is_flag=True, default=None, help=text)
    choices = option.metadata["choices"]
    # Values from every source are checked in one place, connmgr/settings.py.
    metavar = "|".join(choices) or ("DAYS" if option.name.endswith("_days") else _METAVARS[str(option.type)])
    return click.option(name, metavar=metavar, help=text)


def _shown(option: Field[Any]) -> str:
    value = option.default
    if not isinstance(value, float):
        return str(value)
    return f"{value:g}" if option.name.endswith("_days") else in_units(value)


_METAVARS = {
    "str": "TEXT",
    "int": "NUMBER",
    "float": "TIME",
    "Path": "PATH",
    "Path | None": "PATH",
    "tuple[str, ...]": "NAMES",
}
