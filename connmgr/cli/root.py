"""The whole command line, built on the client. Only the commands that run server code load it."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from typing import Any, NoReturn

import click

from connmgr import __version__
from connmgr.cli import COMPLETION_VARIABLE, exits
from connmgr.cli.examples import give_examples
from connmgr.cli.options import Group, take_common_options
from connmgr.errors import ConnmgrError

SECTIONS = {
    "Run commands": {
        "exec": "commands.exec",
        "job": "commands.jobs",
        "run": "commands.runs",
        "schedule": "commands.runs",
        "shell": "commands.shell",
        "terminal": "commands.terminals",
        "ssh": "ssh",
        "ssh-config": "commands.tunnels",
        "command": "commands.rights",
        "start": "commands.shells",
        "restart": "commands.shells",
        "disconnect": "commands.shells",
        "container": "commands.shells",
    },
    "Files and ports": {
        "cp": "copy.command",
        "tunnel": "commands.tunnels",
    },
    "Connections": {
        "ls": "commands.connections",
        "info": "commands.connections",
        "add": "commands.editing",
        "edit": "commands.editing",
        "mv": "commands.editing",
        "rm": "commands.editing",
        "label": "commands.connections",
        "facts": "commands.connections",
        "category": "commands.connections",
        "trust": "commands.trust",
        "inventory": "commands.inventories",
        "import-ssh-config": "declarative.imports",
        "import-ansible-inventory": "declarative.imports",
        "export": "declarative.document",
        "apply": "declarative.document",
    },
    "Secrets and rights": {
        "vault": "commands.vault",
        "encrypt": "commands.secrets",
        "decrypt": "commands.secrets",
        "sudo-password": "commands.secrets",
        "ca": "commands.ca",
        "token": "commands.rights",
        "approve": "commands.rights",
        "audit": "commands.audit",
        "undo": "commands.audit",
        "api-key": "commands.serve",
        "mcp": "commands.mcp",
    },
    "The daemon": {
        "serve": "commands.serve",
        "web": "commands.daemon",
        "status": "commands.daemon",
        "events": "commands.daemon",
        "stop": "commands.daemon",
        "service": "commands.service",
        "doctor": "commands.doctor",
        "plugins": "commands.serve",
        "completion": "commands.help",
        "help": "commands.help",
    },
}
"""Each command and its module in this package, which is imported when the command is used; by sections of the help."""

COMMANDS = {name: module for commands in SECTIONS.values() for name, module in commands.items()}

WHICH_WAY = """
Which of the four: `exec` waits for a command and exits with its code. `exec --detach` begins a job, which runs on
without you. `shell` opens a terminal for editors, pagers and questions. `ssh` stands in for ssh under other tools.
"""


class Commands(Group):
    """Imports a command when it is used, and turns errors into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        widest = max(map(len, commands))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                if title == "Run commands":
                    formatter.write_text(WHICH_WAY.strip())
                    formatter.write_paragraph()
                rows = [(name, command) for name in names if (command := commands[name]) and not command.hidden]
                summary = formatter.width - 6 - widest
                # Padded, so that the columns of all sections agree.
                formatter.write_dl(
                    [(name.ljust(widest), command.get_short_help_str(summary)) for name, command in rows]
                )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"connmgr.cli.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        take_common_options(command, self)
        give_examples(command, cmd_name)
        # connmgr/__main__.py switched it off for the imports.
        gc.enable()
        return command

    def main(self, *arguments: Any, **more: Any) -> NoReturn:
        if COMPLETION_VARIABLE in os.environ:
            from connmgr.cli.commands.help import register_completion

            register_completion()
        # Not click's standalone mode, which shows errors by itself, and exits with 1 after Ctrl-C.
        try:
            code = super().main(*arguments, **{**more, "standalone_mode": False}) or 0
        except click.ClickException as error:
            code = _show_error(error)
        except click.Abort as error:
            click.echo("Aborted!", err=True)
            # click raises the same for Ctrl-C, Ctrl-D and the answer no.
            code = exits.INTERRUPTED if isinstance(error.__context__, KeyboardInterrupt) else exits.FAILED
        except (OSError, UnicodeError) as error:
            code = _show_error(exits.io_failure(error))
        sys.exit(code)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except ConnmgrError as error:
            raise click.ClickException(error.message) from error
        except Exception as error:
            # Importing the client takes as long as all the rest, and not every command needs it.
            from connmgr.client import ClientError

            if not isinstance(error, ClientError):
                raise
            raise exits.failure(error) from error
        except KeyboardInterrupt:
            click.echo(err=True)
            raise click.exceptions.Exit(exits.INTERRUPTED) from None


def _show_error(error: click.ClickException) -> int:
    """Show an error if stderr is still open, and return the exit code."""
    with contextlib.suppress(OSError):
        error.show()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # Python would flush it again at exit, fail, and change the exit code.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return error.exit_code


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--url", metavar="URL", help="The daemon to talk to.  [default: where this user's daemon listens]")
@click.option(
    "--api-key-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Authenticate with the API key in this file, instead of the auth file; CONNMGR_API_KEY_FILE names one too. "
    "With --url the daemon may be another user's.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Authenticate with the token in this file; CONNMGR_TOKEN_FILE names one too, and CONNMGR_TOKEN is the token "
    "itself.",
)
@click.option("--unlock", metavar="USER", help="Unlock a vault user for this command; asks for the passphrase.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, where the command has any.")
@click.version_option(__version__, prog_name="connmgr", message="%(prog)s %(version)s")
def main(**_: object) -> None:
    """Manage connections to machines, and work on them.

    Name a CONNECTION by its path (web/root), with or without its category, by its last name (root), or by its uuid. A
    part of a name is not enough; the Tab key completes it. A GLOB ('web*') is matched against last names, one with a /
    ('fleet/*') against paths. `local` is the machine of the daemon.

    Each option below may stand before the command or after it.
    """
