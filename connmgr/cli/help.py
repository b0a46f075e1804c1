"""``connmgr help``: the help of a command, and the meaning of the exit codes."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from connmgr.cli.exits import FROM_THE_COMMAND, MEANINGS

EXIT_CODES = "exit-codes"


class _Word(click.types.StringParamType):
    """A word of a command, or a subject."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        context = ctx.find_root()
        for word in ctx.params["words"]:
            context = _within(context, word)
        subjects = [CompletionItem(EXIT_CODES)] if not ctx.params["words"] and EXIT_CODES.startswith(incomplete) else []
        return [*context.command.shell_complete(context, incomplete), *subjects]


@click.command(name="help")
@click.argument("words", metavar="[COMMAND...|exit-codes]", type=_Word(), nargs=-1)
@click.pass_context
def help(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command, or the exit codes."""
    root = context.find_root()
    if words == (EXIT_CODES,):
        click.echo(_exit_codes(root))
        return
    for word in words:
        root = _within(root, word)
    click.echo(root.get_help())


def _within(context: click.Context, word: str) -> click.Context:
    """Return the context of the command ``word`` below that of ``context``.

    :raises click.UsageError: there is no such command.
    """
    command = context.command
    if not isinstance(command, click.Group):
        raise click.UsageError(f"{context.command_path} has no commands.")
    _, found, _ = command.resolve_command(context, [word])
    assert found is not None, "else resolve_command raises"  # noqa: S101
    return click.Context(found, info_name=word, parent=context)


def _exit_codes(context: click.Context) -> str:
    formatter = context.make_formatter()
    formatter.write_dl([(str(code), meaning) for code, meaning in MEANINGS.items()])
    formatter.write_paragraph()
    formatter.write_text(FROM_THE_COMMAND)
    return formatter.getvalue().rstrip("\n")
