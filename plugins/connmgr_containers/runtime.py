"""What the types have in common: a program on the host that is asked for a place, and the reasons why it refuses."""

from __future__ import annotations

import re
import shlex
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from connmgr.errors import ElevationFailed, NoShellInside, OperationError, RuntimeUnreachable, ShellStartFailed
from connmgr.plugin import Deadline, Dialogue, Toggled, Transport, Wrapper
from connmgr_containers.words import spelled

STEP_SECONDS = 20.0
"""Longest wait until a program runs inside; a cluster takes its time."""

PRINTED_CHARACTERS = 300
"""Characters of what a program printed that a message quotes."""

LISTED_BYTES = 16 << 20
"""Bytes in which a runtime may list what it has."""


class Reason(NamedTuple):
    """A refusal: how it is recognised, its class, and what it means; ``{}`` is the place, as "the container web"."""

    pattern: re.Pattern[str]
    error: type[OperationError]
    message: str


def reason(pattern: str, error: type[OperationError], message: str) -> Reason:
    """Return the :class:`Reason` with that regular expression, which ignores case."""
    return Reason(re.compile(pattern, re.IGNORECASE), error, message)


NO_SHELL = reason(
    r"[\"'`]?/bin/sh[\"'`]?:? .{0,80}(?:no such file|not found)|(?:no such file|not found).{0,40}/bin/sh|"
    r"failed to run command [^ ]{0,9}/bin/sh",
    NoShellInside,
    "There is no /bin/sh in {}: no shell can be opened. A job with an `argv` runs all the same.",
)


# What relays a terminal tells the size that it begins with too late, or not at all, and another TERM.
_SIZED = 'TERM=$1 size=$2; export TERM; shift 2; stty rows "${size% *}" cols "${size#* }" 2>/dev/null; exec "$@"'


def leading_in(entering: Sequence[str], argv: Sequence[str], *, pty: bool) -> list[str]:
    """Return the argv that runs ``argv`` behind the words ``entering``, on a terminal like theirs with ``pty``."""
    if not pty:
        return [*entering, *spelled(argv)]
    script = f'exec {shlex.join(entering)} /bin/sh -c {shlex.quote(_SIZED)} sh "$TERM" "$(stty size)" "$@"'
    return ["/bin/sh", "-c", script, "sh", *spelled(argv)]


_AS_WANTED = {
    True: re.compile(r"already (?:running|started)", re.IGNORECASE),
    False: re.compile(r"already stopped|is not running|no machine '.{0,64}' known", re.IGNORECASE),
}
"""What a runtime says of what is as it should become, by whether that is running."""


class Runtime(Wrapper):
    """Runs programs in a place that a program of the host, named ``program``, leads into."""

    via = "host"

    program: str
    """The program that must be in the PATH on the host."""

    reasons: Sequence[Reason] = ()
    """Why the program refuses, the most specific first."""

    @abstractmethod
    def place(self, data: Mapping[str, Any]) -> str:
        """Return how messages name what ``data`` leads into."""

    def needs_login(self, data: Mapping[str, Any]) -> bool:
        return True

    def login(self, dialogue: Dialogue, data: Mapping[str, Any]) -> None:
        try:
            dialogue.expect([dialogue.ready], STEP_SECONDS)
        except ElevationFailed as error:
            raise self.explained(dialogue.printed, data) from error

    def explained(self, printed: str, data: Mapping[str, Any]) -> OperationError:
        """Return the error for a program that ended with ``printed``."""
        return explained(self.program, self.reasons, printed, self.place(data), f"No shell in {self.place(data)}")


class Switched(Runtime, Toggled):
    """A container that its runtime starts and stops."""

    def place(self, data: Mapping[str, Any]) -> str:
        return f"container {data['containerName']}"

    @abstractmethod
    def switch(self, data: Mapping[str, Any], *, state: bool) -> list[str]:
        """Return the argv that starts what ``data`` leads into, or stops it where ``state`` is False."""

    def toggle(self, transport: Transport | None, data: Mapping[str, Any], state: bool, *, timeout: float) -> None:
        if transport is None:
            raise RuntimeUnreachable(f"{self.place(data)} has no host.")
        printed = run(transport, self.switch(data, state=state), Deadline(timeout))
        if printed.status and not _AS_WANTED[state].search(printed.said):
            failure = f"{self.place(data)} cannot be {'started' if state else 'stopped'}"
            raise explained(self.program, self.reasons, printed.said, self.place(data), failure)


def explained(program: str, reasons: Sequence[Reason], printed: str, place: str, failure: str) -> OperationError:
    """Return the error for a program that printed ``printed`` where ``place`` was meant; ``failure`` begins others."""
    missing = reason(
        rf"(?:^|\W){re.escape(program)}\W?: (?:command not found|not found|no such file)",
        RuntimeUnreachable,
        f"{program} is not installed on that machine, or is not in the PATH of its user.",
    )
    for each in (missing, *reasons):
        if each.pattern.search(printed):
            return each.error(each.message.format(place))
    said = printed[-PRINTED_CHARACTERS:] or f"{program} ended without a word"
    return ShellStartFailed(f"{failure}: {said}")


class Printed(NamedTuple):
    """How a program ended: its status and both its streams."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def said(self) -> str:
        """What it said of a failure, on one line."""
        text = (self.stderr or self.stdout).decode(errors="replace")
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def run(transport: Transport, argv: Sequence[str], deadline: Deadline) -> Printed:
    """Run a program without input to its end.

    :raises connmgr.errors.OperationError: it could not be started, printed too much, or did not end by ``deadline``.
    """
    channel = transport.open_channel(["/bin/sh", "-c", 'exec "$@"', "sh", *argv], timeout=deadline.left())
    out, err = bytearray(), bytearray()
    try:
        channel.shutdown_write()
        while len(out) + len(err) <= LISTED_BYTES and not deadline.passed:
            stdout, stderr = channel.recv(deadline.left())
            out += stdout
            err += stderr
    except EOFError:
        return Printed(channel.exit_status(deadline.left()), bytes(out), bytes(err))
    except OSError as error:
        raise RuntimeUnreachable(f"The link broke while {argv[0]} ran; try again.") from error
    finally:
        channel.close()
    if deadline.passed:
        raise RuntimeUnreachable(f"{argv[0]} did not answer in time.")
    raise RuntimeUnreachable(f"{argv[0]} printed more than {LISTED_BYTES >> 20} MiB.")
