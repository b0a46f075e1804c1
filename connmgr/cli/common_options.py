"""The options that may stand before a command or after it."""

from __future__ import annotations

from typing import Any

import click

JSON = "--json"


def take_common_options(command: click.Command, root: click.Group) -> None:
    """Let ``command``, and all below it, take the options of ``root``, except those that they have themselves.

    Only the help of ``root`` lists these options.
    """
    if isinstance(command, click.Group):
        for one in command.commands.values():
            take_common_options(one, root)
        if not command.invoke_without_command:
            return
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
