"""The base of the service managers."""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from connmgr.cli.exits import Failure

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
        draft = self.file.with_name(f".{self.file.name}.{os.getpid()}")
        draft.write_text(text)
        draft.replace(self.file)


def run(*argv: str) -> str:
    """Return the output of a program.

    :raises Failure: the program fails; the message has its output.
    """
    done = attempt(*argv)
    if done.returncode != 0:
        raise Failure(f"`{' '.join(argv)}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


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
