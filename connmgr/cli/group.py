"""A command that has others."""

from __future__ import annotations

import click

from connmgr.cli.near import did_you_mean


class Group(click.Group):
    """Says which command may be meant where there is none of a name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchOption:
            raise
        except click.UsageError as error:
            names = self.list_commands(ctx)
            hint = did_you_mean(args[0], dict(zip(names, names, strict=True)))
            raise click.UsageError(f"{ctx.command_path} has no command {args[0]!r}.{hint}", ctx) from error
