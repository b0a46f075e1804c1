"""What starts services for a user."""

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
    """The manager of this user's services, and ``file``, by which it knows the daemon."""

    NAME: ClassVar[str]
    HINT: ClassVar[str]
    """What a person wants to know next."""

    file: Path

    @abstractmethod
    def text(self, argv: Sequence[str], variables: Mapping[str, str]) -> str:
        """Return the content of the file, for a daemon that is started by ``argv`` with these environment variables."""

    @abstractmethod
    def require(self) -> None:
        """Return if the manager runs for this user.

        :raises Failure: it does not; the message says what to do instead.
        """

    @abstractmethod
    def start(self) -> None:
        """Have the service start with each session, and start or restart it now, with the file as it is."""

    @abstractmethod
    def remove(self) -> None:
        """Stop the service, and remove its file."""

    @abstractmethod
    def state(self) -> State: ...

    def write(self, text: str) -> None:
        """Write the file, whole or not at all."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        draft = self.file.with_name(f".{self.file.name}.{os.getpid()}")
        draft.write_text(text)
        draft.replace(self.file)


def run(*argv: str) -> str:
    """Return the output of a program.

    :raises Failure: it fails; the message has what it says.
    """
    done = attempt(*argv)
    if done.returncode != 0:
        raise Failure(f"`{' '.join(argv)}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def attempt(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end.

    :raises Failure: there is no such program, or it does not end in time.
    """
    try:
        return subprocess.run(  # noqa: S603 - systemctl or launchctl
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
        )
    except FileNotFoundError:
        raise Failure(f"The program {argv[0]} is not installed.") from None
    except subprocess.TimeoutExpired:
        raise Failure(f"`{' '.join(argv)}` did not end within {COMMAND_SECONDS:g} seconds.") from None
