"""``connmgr help`` and ``connmgr completion``: what helps to type commands."""

from __future__ import annotations

import re

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

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
    _, inner, _ = command.resolve_command(context, [word])
    assert inner is not None, "else resolve_command raises"  # noqa: S101
    return click.Context(inner, info_name=word, parent=context)


def _exit_codes(context: click.Context) -> str:
    formatter = context.make_formatter()
    formatter.write_dl([(str(code), meaning) for code, meaning in MEANINGS.items()])
    formatter.write_paragraph()
    formatter.write_text(FROM_THE_COMMAND)
    return formatter.getvalue().rstrip("\n")


PROGRAM = "connmgr"

_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' completion
    COMPREPLY=()
    while read -r completion; do
        case $completion in
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
            plain,*) COMPREPLY+=("${completion#plain,}") ;;
        esac
    done < <(COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD %(complete_var)s=bash_complete "$1" 2>/dev/null)
    [[ ${COMPREPLY[0]-} != *: ]] || compopt -o nospace
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class Bash(BashComplete):
    """Quotes the completions: bash does not quote those of a function, and click's script removes quotes."""

    source_template = _BASH

    @staticmethod
    def _check_version() -> None:
        """Skip click's check, which starts a process for each completion; the method is private to click."""

    def format_completion(self, item: CompletionItem) -> str:
        quoted = re.sub(r"([^A-Za-z0-9_@%+=:,./~-])", r"\\\1", item.value)
        return f"{item.type},{quoted}"


_FISH = """\
function %(complete_func)s
    set -l response (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp) COMP_CWORD=(commandline -t) \\
        %(prog_name)s)
    for completion in $response
        # A description may have commas of its own.
        set -l parts (string split --max 1 , -- $completion)
        switch $parts[1]
            case dir
                __fish_complete_directories $parts[2]
            case file
                __fish_complete_path $parts[2]
            case plain
                echo $parts[2]
        end
    end
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class Fish(FishComplete):
    """Keeps descriptions whole: click's script cuts them at the first comma."""

    source_template = _FISH


_SHELLS: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": ZshComplete, "fish": Fish}


def register_completion() -> None:
    """Make click answer completions with the classes of this module."""
    add_completion_class(Bash)
    add_completion_class(Fish)


@click.command()
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(list(_SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    It completes commands, options and the running daemon's connections.

    \b
    bash:  eval "$(connmgr completion bash)"             in ~/.bashrc
    zsh:   eval "$(connmgr completion zsh)"              in ~/.zshrc, after compinit
    fish:  connmgr completion fish | source              in ~/.config/fish/config.fish
    """
    click.echo(_SHELLS[shell](context.find_root().command, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source())
