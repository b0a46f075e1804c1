"""Commands that have subcommands."""

from __future__ import annotations

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
        found = super().shell_complete(ctx, incomplete)
        commands = {one.value: self.get_command(ctx, one.value) for one in found if not one.value.startswith("-")}
        for one in found:
            if command := commands.get(one.value):
                one.help = command.get_short_help_str(WHOLE_CHARACTERS)
        return found
