"""The daemon's settings as options of a command."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import Field
from pathlib import Path
from typing import Any, TypeVar

import click

from connmgr import paths
from connmgr.cli.exits import DENIED, Failure
from connmgr.cli.output import in_units
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
    """Return the settings that the options ``given`` to a command make, or raise :class:`StartupError`.

    :raises Failure: a credential is named, which the command would ignore; see :func:`require_owner`.
    """
    require_owner()
    flags = dict(given)
    config = flags.pop("config")
    return load(flags, config=Path(config) if config is not None else None)


def require_owner() -> None:
    """Refuse a named credential: the running command uses this user's own files, and asks no daemon for its rights.

    :raises Failure: a token or an API key is named.
    """
    context = click.get_current_context()
    options = context.find_root().params
    named = [f"--{name.replace('_', '-')}" for name in ("token_file", "api_key_file") if options.get(name) is not None]
    if not named:
        named = [variable for variable in paths.CREDENTIAL_VARIABLES if variable in os.environ]
    if named:
        raise Failure(
            f"`{context.command_path}` works on this user's own files, with all rights of the owner, and would ignore "
            f"the credential that {named[0]} names. Run it without {named[0]} if that is what you want.",
            DENIED,
        )


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
    if isinstance(value, tuple):
        return ",".join(value)
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
