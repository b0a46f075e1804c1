"""How commands are declared: in groups, with the root's options everywhere, and with the daemon's settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from connmgr import paths
from connmgr.cli.exits import DENIED, Failure
from connmgr.cli.output import in_units

if TYPE_CHECKING:
    from dataclasses import Field

    from connmgr.settings import Settings
    from connmgr.vault import Database


WHOLE_CHARACTERS = 1000
"""More than any command's summary has; completion passes summaries whole, and shells shorten them."""


SAME_AS = {"remove": "rm", "delete": "rm", "del": "rm", "list": "ls", "move": "mv", "rename": "mv", "copy": "cp"}
"""What people type in other programs, by what it is called here."""


class Group(click.Group):
    """Suggests commands for an unknown name, and completes with whole summaries."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchOption:
            raise
        except click.UsageError as error:
            # Imported here, because the client takes long to import and most commands exist.
            from connmgr.client.names import did_you_mean

            names = self.list_commands(ctx)
            # The nearest name to `remove` is that of `resume`.
            meant = SAME_AS.get(args[0])
            nearest = did_you_mean(args[0], dict(zip(names, names, strict=True)))
            hint = f" Did you mean {meant}?" if meant in names else nearest
            raise click.UsageError(f"{ctx.command_path} has no command {args[0]!r}.{hint}", ctx) from error

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        items = super().shell_complete(ctx, incomplete)
        commands = {item.value: self.get_command(ctx, item.value) for item in items if not item.value.startswith("-")}
        for item in items:
            if command := commands.get(item.value):
                item.help = command.get_short_help_str(WHOLE_CHARACTERS)
        return items


JSON = "--json"


def take_common_options(command: click.Command, root: click.Group) -> None:
    """Let ``command``, and all below it, take the options of ``root``, except those that they have themselves.

    Only the help of ``root`` lists these options.
    """
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            take_common_options(subcommand, root)
        if not command.invoke_without_command:
            return
    # click reads options only where they are declared. Here each command declares the root's options, hidden.
    own = {name for parameter in command.params for name in parameter.opts}
    for option in root.params:
        if isinstance(option, click.Option) and not option.is_eager and not own.intersection(option.opts):
            command.params.append(_passed_up(option))


def _passed_up(option: click.Option) -> click.Option:
    """Return an option like ``option`` of the root, which stores its value there."""

    def pass_up(context: click.Context, _: click.Parameter, value: Any) -> None:
        shared = context.find_root().params
        if value is not None and value is not False:
            shared[option.name] = value
        # A command that prints JSON has the option itself.
        if JSON in option.opts and shared.get(option.name):
            raise click.UsageError(f"{context.command_path} prints no JSON.", context)

    return click.Option(
        [*option.opts, option.name or ""],
        type=option.type,
        is_flag=option.is_flag,
        metavar=option.metavar,
        default=None,
        hidden=True,
        expose_value=False,
        callback=pass_up,
    )


class WithCommand(click.Command):
    """Takes the words after ``--`` as ``command``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        marked = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:marked])
        ctx.params["command"] = tuple(args[marked + 1 :])
        return rest


def read_assignments(words: Sequence[str], hint: str) -> dict[str, str]:
    """Return the values by their names that words such as ``service=nginx`` give; ``hint`` names the option.

    :raises click.UsageError: one has no ``=``, or a name has two values.
    """
    for word in words:
        if "=" not in word:
            raise click.BadParameter(f"{word!r} is not of the form NAME=VALUE.", param_hint=hint)
    require_once(word.partition("=")[0] for word in words)
    return dict(word.split("=", 1) for word in words)


def require_once(names: Iterable[str]) -> None:
    """Return if no name occurs twice: of two values one would be dropped without a word.

    :raises click.UsageError: one does.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise click.UsageError(f"{name} is given twice.")
        seen.add(name)


Command = TypeVar("Command", bound=Callable[..., Any])


def states_option(lead: str, states: Sequence[str]) -> Callable[[Command], Command]:
    """Return the option ``--state``, the argument ``states``; its help begins with ``lead``, such as "Only jobs"."""
    text = f"{lead} in this state: {', '.join(states)}. May be given several times."
    return click.option("--state", "states", metavar="STATE", type=click.Choice(states), multiple=True, help=text)


def setting_options(*names: str) -> Callable[[Command], Command]:
    """Give a command the options of the settings ``names``, or of all settings, and ``--config``.

    The command takes them as keyword arguments for :func:`read_settings`.
    """
    # Imported here, because most commands have no settings.
    from connmgr.settings import options

    selection = [option for option in options() if not names or option.name in names]

    def decorate(command: Command) -> Command:
        config = click.option("--config", metavar="FILE", help="Configuration file, instead of config.toml.")
        command = config(command)
        for option in reversed(selection):
            command = _option(option)(command)
        return command

    return decorate


def read_settings(values: dict[str, Any]) -> Settings:
    """Return the settings that the options ``values`` to a command make, or raise :class:`StartupError`.

    :raises Failure: a credential is named, which the command would ignore; see :func:`require_owner`.
    """
    from connmgr.settings import load

    require_owner()
    flags = dict(values)
    config = flags.pop("config")
    return load(flags, config=Path(config) if config is not None else None)


def open_vault_database(settings: Settings) -> closing[Database]:
    """Open the database of the vault with ``settings``, for a ``with`` block, in a process that leaves no core dump.

    :raises StartupError: it cannot be opened.
    """
    from connmgr.daemon.files import database_url
    from connmgr.processes import harden
    from connmgr.vault import open_database

    harden()
    return closing(open_database(database_url(settings)))


def require_owner() -> None:
    """Refuse a named credential: the running command uses this user's own files, and asks no daemon for its rights.

    :raises Failure: a token or an API key is named.
    """
    context = click.get_current_context()
    options = context.find_root().params
    names = [f"--{name.replace('_', '-')}" for name in ("token_file", "api_key_file") if options.get(name) is not None]
    if not names:
        names = [variable for variable in paths.CREDENTIAL_VARIABLES if variable in os.environ]
    if names:
        raise Failure(
            f"`{context.command_path}` works on this user's own files, with all rights of the owner, and would ignore "
            f"the credential that {names[0]} names. Run it without {names[0]} if that is what you want.",
            DENIED,
        )


def _option(option: Field[Any]) -> Callable[[Command], Command]:
    name = f"--{option.name.replace('_', '-')}"
    default = "" if option.default in (None, "", (), False) else f"  [default: {_default_text(option)}]"
    text = option.metadata["help"] + default
    if option.default is False:
        return click.option(name, is_flag=True, default=None, help=text)
    choices = option.metadata["choices"]
    # Values from every source are checked in one place, connmgr/settings.py.
    metavar = "|".join(choices) or ("DAYS" if option.name.endswith("_days") else _METAVARS[str(option.type)])
    return click.option(name, metavar=metavar, help=text)


def _default_text(option: Field[Any]) -> str:
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
