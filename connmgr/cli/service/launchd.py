"""launchd's agent of the daemon, on macOS."""

from __future__ import annotations

import os
import plistlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from connmgr.cli.exits import Failure
from connmgr.cli.service.manager import Manager, State, attempt, run

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
