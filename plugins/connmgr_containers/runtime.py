"""The base of all container types: a program on the host enters the container, or says why it refuses."""

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
"""Longest wait until a program runs inside a container; clusters are slow."""

PRINTED_CHARACTERS = 300
"""Longest quotation of a program's output in an error."""

LISTED_BYTES = 16 << 20
"""Most bytes that a runtime may print when it lists its containers."""


class Reason(NamedTuple):
    """A refusal: the pattern of its output, the error, and its message; ``{}`` is the place, as "container web"."""

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


# Programs that relay a terminal pass its first size too late or not at all, and set another TERM.
_SIZED = 'TERM=$1 size=$2; export TERM; shift 2; stty rows "${size% *}" cols "${size#* }" 2>/dev/null; exec "$@"'


def leading_in(entering: Sequence[str], argv: Sequence[str], *, pty: bool) -> list[str]:
    """Return the argv that runs ``argv`` after the words ``entering``; with ``pty`` its terminal is like theirs."""
    if not pty:
        return [*entering, *spelled(argv)]
    script = f'exec {shlex.join(entering)} /bin/sh -c {shlex.quote(_SIZED)} sh "$TERM" "$(stty size)" "$@"'
    return ["/bin/sh", "-c", script, "sh", *spelled(argv)]


_AS_WANTED = {
    True: re.compile(r"already (?:running|started)", re.IGNORECASE),
    False: re.compile(r"already stopped|is not running|no machine '.{0,64}' known", re.IGNORECASE),
}
"""What a runtime prints when there is nothing to do, by the wanted state: True is running."""


class Runtime(Wrapper):
    """Runs programs in a container or root directory that ``program``, a program of the host, enters."""

    via = "host"

    program: str
    """The program that must be in the PATH on the host."""

    reasons: Sequence[Reason] = ()
    """Why the program refuses, the most specific first."""

    @abstractmethod
    def place(self, data: Mapping[str, Any]) -> str:
        """Return the place that ``data`` leads to, as messages name it."""

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
        """Return the argv that starts the container of ``data``, or stops it if ``state`` is False."""

    def toggle(self, transport: Transport | None, data: Mapping[str, Any], state: bool, *, timeout: float) -> None:
        if transport is None:
            raise RuntimeUnreachable(f"{self.place(data)} has no host.")
        printed = run(transport, self.switch(data, state=state), Deadline(timeout))
        if printed.status and not _AS_WANTED[state].search(printed.said):
            failure = f"{self.place(data)} cannot be {'started' if state else 'stopped'}"
            raise explained(self.program, self.reasons, printed.said, self.place(data), failure)


def explained(program: str, reasons: Sequence[Reason], printed: str, place: str, failure: str) -> OperationError:
    """Return the error for ``printed``: the first reason that matches, else ``failure`` and the end of the output."""
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
        """What the program printed about a failure, on one line."""
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
