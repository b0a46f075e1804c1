"""``connmgr service``: the daemon as a service of this user, started by the system."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from connmgr import paths
from connmgr.cli.exits import UNREACHABLE, Failure
from connmgr.cli.options import read_settings, require_owner, setting_options
from connmgr.cli.output import json_option, print_json, print_table
from connmgr.cli.program import program
from connmgr.cli.service import man
from connmgr.cli.service.launchd import Launchd
from connmgr.cli.service.manager import Manager
from connmgr.cli.service.systemd import Systemd
from connmgr.paths import find_daemon
from connmgr.settings import Settings, options

DIRECTORIES = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
"""Variables for the places of files; the service would not have them otherwise."""

AGENT = "SSH_AUTH_SOCK"


@click.group()
def service() -> None:
    """Have the system start the daemon.

    That is a systemd user unit on Linux, a launchd agent on macOS.
    """


@service.command()
@click.option("--ssh-agent", is_flag=True, help="Let the daemon ask the SSH agent of this terminal, by SSH_AUTH_SOCK.")
@click.option("--dry-run", is_flag=True, help="Only print the file that would be written.")
@setting_options()
def install(*, ssh_agent: bool, dry_run: bool, **given: Any) -> None:
    """Install, enable and start the service, or replace it.

    The service runs this installation of connmgr. Settings of this command line and the environment become options in
    its file. Settings in config.toml stay there. The man page goes to where man finds it.
    """
    settings = read_settings(given)
    manager = _manager()
    text = manager.text([*program(), "serve", *_arguments(settings, given)], _variables(ssh_agent=ssh_agent))
    if dry_run:
        click.echo(text, nl=False)
        return
    manager.require()
    running = find_daemon(settings.auth_file)
    if running and not manager.state().active:
        message = f"A daemon already runs at {running.url} (process {running.pid})"
        raise Failure(f"{message}. End it with `connmgr stop`, then repeat this.")
    manager.write(text)
    manager.start()
    man.link()
    click.echo(f"The service runs, by {manager.file}. {manager.HINT}")


@service.command()
def uninstall() -> None:
    """Stop and remove the service. The vault and all settings stay."""
    require_owner()
    manager = _manager()
    manager.require()
    if manager.file.exists():
        manager.remove()
        click.echo(f"The service is stopped, and {manager.file} removed.")
    else:
        click.echo("No service is installed.")
    man.unlink()


@service.command()
@json_option
def status(*, as_json: bool) -> None:
    """Show whether the service is installed, enabled and active. Exits with 3 if it is not active."""
    require_owner()
    manager = _manager()
    manager.require()
    state, installed = manager.state(), manager.file.exists()
    if as_json:
        print_json({"manager": manager.NAME, "file": str(manager.file) if installed else None, **state._asdict()})
    else:
        print_table(
            [
                ("file", str(manager.file) if installed else "none: `connmgr service install` writes it"),
                ("enabled", "yes" if state.enabled else "no"),
                ("active", "yes" if state.active else "no"),
            ]
        )
    if not state.active:
        raise click.exceptions.Exit(UNREACHABLE)


def _manager() -> Manager:
    return Launchd() if sys.platform == "darwin" else Systemd()


def _arguments(settings: Settings, given: dict[str, Any]) -> list[str]:
    """Return the settings from options and environment, but not those from config.toml, as options of ``serve``.

    :raises Failure: one is a secret, which everybody could read in the process list.
    """
    arguments = []
    config = given["config"] or paths.value_of(os.environ, "CONNMGR_CONFIG")
    if config is not None:
        arguments += ["--config", str(Path(config).absolute())]
    for option in options():
        if given[option.name] is None and f"CONNMGR_{option.name.upper()}" not in os.environ:
            continue
        name = option.name.replace("_", "-")
        if option.metadata["secret"]:
            raise Failure(f"Put {name} into config.toml: every user of this machine can read a process's arguments.")
        value = getattr(settings, option.name)
        if isinstance(value, bool):
            arguments += [f"--{name}"] if value else []
        else:
            arguments += [f"--{name}", ",".join(value) if isinstance(value, tuple) else str(value)]
    return arguments


def _variables(*, ssh_agent: bool) -> dict[str, str]:
    if ssh_agent and not os.environ.get(AGENT):
        raise Failure(f"No SSH agent is known here: {AGENT} is not set. Start one, or leave out --ssh-agent.")
    names = (*DIRECTORIES, AGENT) if ssh_agent else DIRECTORIES
    return {name: os.environ[name] for name in names if os.environ.get(name)}
