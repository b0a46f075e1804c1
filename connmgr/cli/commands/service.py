"""``connmgr service``: the daemon as a service of this user, started by systemd or launchd."""

from __future__ import annotations

import os
import plistlib
import re
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import click

from connmgr import paths
from connmgr.cli.connect import program
from connmgr.cli.exits import UNREACHABLE, Failure
from connmgr.cli.options import read_settings, require_owner, setting_options
from connmgr.cli.output import json_option, print_json, print_table
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
def install(*, ssh_agent: bool, dry_run: bool, **flags: Any) -> None:
    """Install, enable and start the service, or replace it.

    The service runs this installation of connmgr. Settings of this command line and the environment become options in
    its file. Settings in config.toml stay there. The man page goes to where man finds it.
    """
    settings = read_settings(flags)
    manager = _manager()
    text = manager.text([*program(), "serve", *_arguments(settings, flags)], _variables(ssh_agent=ssh_agent))
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
    link_man_page()
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
    unlink_man_page()


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


def _arguments(settings: Settings, flags: dict[str, Any]) -> list[str]:
    """Return the settings from options and environment, but not those from config.toml, as options of ``serve``.

    :raises Failure: one is a secret, which everybody could read in the process list.
    """
    arguments = []
    config = flags["config"] or paths.value_of(os.environ, "CONNMGR_CONFIG")
    if config is not None:
        arguments += ["--config", str(Path(config).absolute())]
    for option in options():
        if flags[option.name] is None and f"CONNMGR_{option.name.upper()}" not in os.environ:
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


COMMAND_SECONDS = 120.0
"""Longer than systemd waits for the daemon to be ready."""


class State(NamedTuple):
    """Whether the service starts with the user's session, and whether it runs now."""

    enabled: bool
    active: bool


class Manager(ABC):
    """A manager of this user's services; ``file`` describes the daemon to it."""

    NAME: ClassVar[str]
    HINT: ClassVar[str]
    """Commands that are useful next, for a person."""

    file: Path

    @abstractmethod
    def text(self, argv: Sequence[str], variables: Mapping[str, str]) -> str:
        """Return the content of the file for a daemon started by ``argv`` with the environment ``variables``."""

    @abstractmethod
    def require(self) -> None:
        """Return if the manager runs for this user.

        :raises Failure: it does not; the message says what to do instead.
        """

    @abstractmethod
    def start(self) -> None:
        """Enable the service for each session, and start or restart it now, with the current file."""

    @abstractmethod
    def remove(self) -> None:
        """Stop the service, and remove its file."""

    @abstractmethod
    def state(self) -> State: ...

    def write(self, text: str) -> None:
        """Write the file atomically."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        # systemd may read the directory at any time, and must not see half a unit.
        draft = self.file.with_name(f".{self.file.name}.{os.getpid()}")
        draft.write_text(text)
        draft.replace(self.file)


def run(*argv: str) -> str:
    """Return the output of a program.

    :raises Failure: the program fails; the message has its output.
    """
    process = attempt(*argv)
    if process.returncode != 0:
        raise Failure(f"`{' '.join(argv)}` failed: {(process.stderr or process.stdout).strip()}")
    return process.stdout


def attempt(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end.

    :raises Failure: the program is missing, or does not end in time.
    """
    try:
        return subprocess.run(  # noqa: S603 - systemctl or launchctl
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
        )
    except FileNotFoundError:
        raise Failure(f"The program {argv[0]} is not installed.") from None
    except subprocess.TimeoutExpired:
        raise Failure(f"`{' '.join(argv)}` did not end within {COMMAND_SECONDS:g} seconds.") from None


UNIT = "connmgr.service"
MARK = "# `connmgr service install` writes this file.\n"

INSTEAD = (
    "Instead, let whatever starts programs here start `connmgr serve`, such as the entry point of a container. "
    "`connmgr service install --dry-run` prints the unit for another machine."
)

_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")

_TEXT = """\
[Unit]
Description=connmgr, connections to machines over an HTTP API
Documentation=man:connmgr(1)

[Service]
Type=notify
ExecStart={command}
{environment}Restart=on-failure
RestartSec=2
# 0 is a clean end; 1 a refusal to start, which repeating does not mend.
RestartPreventExitStatus=1
TimeoutStopSec=15
# The daemon ends its shells. Jobs, and what commands left in the background, live on as they do without systemd.
KillMode=process
UMask=0077
LimitCORE=0
LimitNOFILE=8192

# Only what leaves the shells of this machine what their user has: sudo and su must work in them, and so NoNewPrivileges
# and all that implies it (SystemCallFilter, RestrictAddressFamilies, ProtectKernel…) stay off. Where nothing is
# elevated on this machine itself, `systemctl --user edit connmgr` can set NoNewPrivileges=yes.
KeyringMode=private
OOMScoreAdjust=200
OOMPolicy=continue
TasksMax=4096

[Install]
WantedBy=default.target
"""


class Systemd(Manager):
    """The user's own systemd, by ``systemctl --user``."""

    NAME = "systemd"
    HINT = "`journalctl --user -u connmgr` shows its log; `loginctl enable-linger` lets it run without a login."

    def __init__(self) -> None:
        config = os.environ.get("XDG_CONFIG_HOME")
        self.file = (Path(config) if config else Path.home() / ".config") / "systemd" / "user" / UNIT

    def text(self, argv: Sequence[str], variables: Mapping[str, str]) -> str:
        # systemd expands $NAME in the words of ExecStart, but not in its first one, the program (systemd.service(5)).
        words = [_quote(argv[0]), *(_quote(word.replace("$", "$$")) for word in argv[1:])]
        environment = "".join(f"Environment={_quote(f'{name}={value}')}\n" for name, value in variables.items())
        return MARK + _TEXT.format(command=" ".join(words), environment=environment)

    def require(self) -> None:
        if shutil.which("systemctl") is None:
            raise Failure(f"This system has no systemd. {INSTEAD}")
        answer = attempt("systemctl", "--user", "show-environment")
        if answer.returncode != 0:
            raise Failure(f"systemd does not run for this user: {answer.stderr.strip()}. {INSTEAD}")

    def write(self, text: str) -> None:
        if self.file.exists() and not self.file.read_text(errors="replace").startswith(MARK):
            raise Failure(f"{self.file} was not written by `connmgr service install`; move it away, then repeat this.")
        super().write(text)

    def start(self) -> None:
        run("systemctl", "--user", "daemon-reload")
        run("systemctl", "--user", "enable", UNIT)
        # The unit is of the type notify: this waits until the daemon is ready, or fails if it does not start.
        run("systemctl", "--user", "restart", UNIT)

    def remove(self) -> None:
        run("systemctl", "--user", "disable", "--now", UNIT)
        self.file.unlink()
        run("systemctl", "--user", "daemon-reload")

    def state(self) -> State:
        return State(enabled=self._is("enabled"), active=self._is("active"))

    @staticmethod
    def _is(state: str) -> bool:
        return attempt("systemctl", "--user", f"is-{state}", "--quiet", UNIT).returncode == 0


def _quote(word: str) -> str:
    if not word.isprintable():
        raise Failure(f"A unit of systemd cannot hold {word!r}.")
    if _PLAIN.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


LABEL = "io.github.connmgr"


class Launchd(Manager):
    """The launchd of the user's graphical session."""

    NAME = "launchd"
    HINT = "~/Library/Logs/connmgr.log is its log."

    def __init__(self) -> None:
        self.file = Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        self._domain = f"gui/{os.getuid()}"
        self._target = f"{self._domain}/{LABEL}"

    def text(self, argv: Sequence[str], variables: Mapping[str, str]) -> str:
        agent = {
            "Label": LABEL,
            "ProgramArguments": list(argv),
            "EnvironmentVariables": dict(variables),
            "RunAtLoad": True,
            "KeepAlive": {"Crashed": True},
            "ThrottleInterval": 5,
            "ExitTimeOut": 15,
            # As with systemd, jobs and background programs of commands survive.
            "AbandonProcessGroup": True,
            "Umask": 0o077,
            "ProcessType": "Adaptive",
            "HardResourceLimits": {"Core": 0},
            "SoftResourceLimits": {"NumberOfFiles": 8192},
            "StandardErrorPath": str(Path.home() / "Library" / "Logs" / "connmgr.log"),
        }
        try:
            return plistlib.dumps(agent, sort_keys=False).decode()
        except ValueError as error:
            raise Failure(f"An agent of launchd cannot hold these settings: {error}.") from error

    def require(self) -> None:
        answer = attempt("launchctl", "print", self._domain)
        if answer.returncode != 0:
            raise Failure(
                f"launchd has no session of this user: {answer.stderr.strip()}. Log in on the screen, or start "
                "`connmgr serve` by yourself."
            )

    def start(self) -> None:
        run("launchctl", "enable", self._target)
        if self.state().active:
            run("launchctl", "bootout", self._target)
        run("launchctl", "bootstrap", self._domain, str(self.file))

    def remove(self) -> None:
        if self.state().active:
            run("launchctl", "bootout", self._target)
        self.file.unlink()

    def state(self) -> State:
        loaded = attempt("launchctl", "print", self._target).returncode == 0
        return State(enabled=self.file.exists(), active=loaded)


PAGE = "connmgr.1"

_PAGES = (
    # In an installed wheel, and in a clone.
    Path(sys.prefix) / "share" / "man" / "man1" / PAGE,
    Path(__file__).resolve().parents[3] / "docs" / PAGE,
)


def link_man_page() -> None:
    """Link this installation's man page below ``~/.local``, unless a page is there already."""
    target, link = _installed_page(), _page_link()
    if target is None or link.exists():
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    # A dead link is left from a removed installation.
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def unlink_man_page() -> None:
    """Remove the link if it leads to this installation's page."""
    if _page_link().is_symlink() and _page_link().readlink() == _installed_page():
        _page_link().unlink()


def _installed_page() -> Path | None:
    return next((path for path in _PAGES if path.is_file()), None)


def _page_link() -> Path:
    return Path.home() / ".local" / "share" / "man" / "man1" / PAGE
