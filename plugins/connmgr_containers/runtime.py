"""The base of all container types: a program on the host enters the container, or says why it refuses.

Hosts of containers are here too: a refresh adds a connection for each container below the connection to its host.
"""

from __future__ import annotations

import os
import re
import shlex
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from connmgr.errors import ElevationFailed, NoShellInside, OperationError, RuntimeUnreachable, ShellStartFailed
from connmgr.plugin import (
    Child,
    Deadline,
    Dialogue,
    Reference,
    Schema,
    Text,
    Toggled,
    Transport,
    ValidationError,
    Wrapper,
)

LOCAL_MACHINE = "f0ec68aa-63f5-405c-b178-9a4454556d6b"
"""The uuid of the connection to the daemon's own machine, for examples."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]*")

STEP_SECONDS = 20.0
"""Longest wait until a program runs inside a container; clusters are slow."""

PRINTED_CHARACTERS = 300
"""Longest quotation of a program's output in an error."""

LISTED_BYTES = 16 << 20
"""Most bytes that a runtime may print when it lists its containers."""


def name(value: str) -> None:
    """Raise ValidationError unless ``value`` is a name, which no program takes for an option."""
    if not _NAME.fullmatch(value):
        raise ValidationError("Not a name: letters, digits and . _ - : @, the first a letter or digit.")


def instance(value: str) -> None:
    """Raise ValidationError unless ``value`` names an instance of the host's own server, not of a remote."""
    name(value)
    if ":" in value:
        raise ValidationError("Not the name of an instance: a colon names a remote. Run over a host of that server.")


def printable(value: str) -> None:
    """Raise ValidationError if ``value`` has characters that are not printable, such as a newline."""
    if not value.isprintable():
        raise ValidationError("Has characters that are not printable.")


def absolute(value: str) -> None:
    """Raise ValidationError unless ``value`` is an absolute path."""
    if not value.startswith("/"):
        raise ValidationError("Not an absolute path.")


def required(description: str) -> Any:
    """Return the field of a name that must be given."""
    return Text(required=True, validate=name, metadata={"description": description})


def optional(description: str) -> Any:
    """Return the field of a name that need not be given."""
    return Text(allow_none=True, validate=name, metadata={"description": description})


class HostSchema(Schema):
    """The field of every type: where the runtime's program runs."""

    host = Reference(required=True, metadata={"description": "The connection on whose machine the program runs."})


class InsideSchema(HostSchema):
    """The fields of types that run commands inside a system with users and directories."""

    user = Text(
        allow_none=True,
        validate=name,
        metadata={"description": "Whom to run as: `name` or `uid:gid`; the image's user otherwise."},
    )
    workdir = Text(
        allow_none=True,
        validate=absolute,
        metadata={"description": "The directory in which programs start, absolute; the image's otherwise."},
    )


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
    "There is no /bin/sh in {}, so no shell can be opened. A job with an `argv` can run there.",
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


class Host(Wrapper):
    """A host of containers; its shell is the shell of the connection it goes through."""

    usage_category: ClassVar[str] = "group"
    schema = HostSchema
    example: ClassVar[Mapping[str, Any]] = {"host": LOCAL_MACHINE}
    via = "host"
    program: str
    reasons: Sequence[Reason] = ()

    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str, *, pty: bool) -> list[str]:
        return list(argv)

    def children(self, transport: Transport, data: Mapping[str, Any], *, timeout: float) -> Iterable[Child]:
        deadline = Deadline(timeout)
        listings = [self._listed(transport, argv, deadline) for argv in self.listing(data)]
        try:
            return list(self.parse(data, *listings))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise RuntimeUnreachable(f"{self.program} printed a list of an unknown format.") from error

    @abstractmethod
    def listing(self, data: Mapping[str, Any]) -> Sequence[Sequence[str]]:
        """Return the argv of each program that lists the host's containers."""

    @abstractmethod
    def parse(self, data: Mapping[str, Any], *listings: str) -> Iterable[Child]:
        """Yield the containers in the output of those programs; any exception means that it cannot be parsed."""

    def _listed(self, transport: Transport, argv: Sequence[str], deadline: Deadline) -> str:
        printed = run(transport, argv, deadline)
        if printed.status:
            raise explained(self.program, self.reasons, printed.said, "that host", f"{self.program} lists nothing")
        return printed.stdout.decode(errors="replace")


def chosen(data: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the fields ``names`` that have a value in ``data``."""
    return {name: data[name] for name in names if data.get(name)}


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
    text = printed[-PRINTED_CHARACTERS:] or f"{program} ended without a message"
    return ShellStartFailed(f"{failure}: {text}")


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
    # By way of sh: exec finds the program in the PATH of the login there, and says in one known form that it is
    # missing.
    channel = transport.open_channel(["/bin/sh", "-c", 'exec "$@"', "sh", *argv], timeout=deadline.left())
    out, err = bytearray(), bytearray()
    try:
        channel.shutdown_write()
        # The limit counts both streams: a program that fills standard error would be read without an end otherwise.
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


def spelled(argv: Sequence[str]) -> list[str]:
    """Return an argv of UTF-8 words that runs ``argv``; a shell restores the words that are not UTF-8.

    Words reach a runtime's server as JSON, which would change bytes that are not UTF-8.
    """
    odd = {number: word for number, word in enumerate(argv, 1) if not _is_text(word)}
    if not odd:
        return list(argv)
    # A shell drops newlines from the end of a command's output; the dot keeps those of the word.
    assignments = "".join(f"w{number}=$(printf '{_octal(word)}.');" for number, word in odd.items())
    words = (f'"${{w{number}%.}}"' if number in odd else f'"${{{number}}}"' for number in range(1, len(argv) + 1))
    plain = ("" if number in odd else word for number, word in enumerate(argv, 1))
    return ["/bin/sh", "-c", f"{assignments}exec {' '.join(words)}", "sh", *plain]


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _octal(word: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in os.fsencode(word))
