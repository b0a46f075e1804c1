"""Commands in groups: names are suggested and completed, and the options of the root may stand anywhere."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

WHOLE_CHARACTERS = 1000
"""More than any command's summary has; completion passes summaries whole, and shells shorten them."""


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
            hint = did_you_mean(args[0], dict(zip(names, names, strict=True)))
            raise click.UsageError(f"{ctx.command_path} has no command {args[0]!r}.{hint}", ctx) from error

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        items = super().shell_complete(ctx, incomplete)
        commands = {one.value: self.get_command(ctx, one.value) for one in items if not one.value.startswith("-")}
        for one in items:
            if command := commands.get(one.value):
                one.help = command.get_short_help_str(WHOLE_CHARACTERS)
        return items


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


class WithCommand(click.Command):
    """Takes the words after ``--`` as ``command``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        marked = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:marked])
        ctx.params["command"] = tuple(args[marked + 1 :])
        return rest
