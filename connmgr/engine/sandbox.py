"""The sandbox of commands that may only look: what they run in on the remote host, and why it may be missing there.

``scripts/sandbox.sh`` runs a program by bubblewrap, or where that is missing or not allowed, by ``unshare`` of
util-linux and ``scripts/sandbox_mounts.sh``; where neither works it runs nothing, and says so after a random mark.
Read-only mounts alone do not hold: a socket, a named pipe and a device take writes on them. So the sandbox has no other
process, no network, none of the machine's devices, and by bubblewrap a filter of system calls (seccomp(2)) without Unix
sockets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

from connmgr.engine.envelope import Command
from connmgr.engine.script import Source
from connmgr.engine.state import ShellSnapshot
from connmgr.errors import ReadOnlyUnavailable
from connmgr.printable import in_one_line

MARK = "connmgr-read-only-"
STATUS = 126
"""The exit code of a program that was not run, as shells have it for one that cannot be executed."""

_RUN, _MOUNTS = Source(__package__, "sandbox"), Source(__package__, "sandbox_mounts")

# Classic BPF (linux/filter.h) over struct seccomp_data (linux/seccomp.h).
_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_NUMBER, _ARCH, _FIRST, _SECOND = 0, 4, 16, 24
_ALLOW, _REFUSE, _UNKNOWN = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38
"""The results: go on, EPERM, ENOSYS."""

_X32 = 0x40000000
_AF_UNIX, _AF_VSOCK, _SOCK_DGRAM, _TYPE_MASK = 1, 40, 2, 0xF
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C


class _Calls:
    """The numbers of system calls on one architecture (asm/unistd.h)."""

    def __init__(self, arch: int, socket: int, socketpair: int, ioctl: int, refused: Sequence[int]) -> None:
        self.arch, self.socket, self.socketpair, self.ioctl = arch, socket, socketpair, ioctl
        # The last ones have the same number everywhere: io_uring_setup, _enter and _register, which make sockets
        # without socket(2); open_tree, move_mount, fsopen, fsconfig, fsmount, fspick, mount_setattr.
        self.refused = [*refused, 425, 426, 427, *range(428, 434), 442]


_X86_64 = _Calls(
    0xC000003E,
    41,
    53,
    16,
    # mount, umount2, pivot_root, unshare, setns, add_key, request_key, keyctl, bpf, perf_event_open, userfaultfd,
    # open_by_handle_at.
    (165, 166, 155, 272, 308, 248, 249, 250, 321, 298, 323, 304),
)
_AARCH64 = _Calls(0xC00000B7, 198, 199, 29, (40, 39, 41, 97, 268, 217, 218, 219, 280, 241, 282, 265))


@cache
def _filter() -> bytes:
    """Return the filter in octal escapes for ``printf``; other architectures than its two get ENOSYS for each call."""
    program = [*_for(_X86_64), *_for(_AARCH64), (_RETURN, 0, 0, _UNKNOWN)]
    data = b"".join(struct.pack("=HBBI", *step) for step in program)
    return b"".join(b"\\%03o" % byte for byte in data)


def _for(calls: _Calls) -> Iterator[tuple[int, int, int, int]]:
    """Yield the steps for one architecture, which are skipped on another."""
    body: list[tuple[int, int, int, int]] = [(_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _REFUSE)]
    for number in calls.refused:
        body += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    # A socket of the family in the first argument; 64-bit arguments are little-endian on both architectures. Those of
    # AF_VSOCK reach the host of a virtual machine, whatever the network's namespace is.
    body += [(_EQUAL, 0, 5, calls.socket), (_LOAD, 0, 0, _FIRST), (_EQUAL, 1, 0, _AF_UNIX), (_EQUAL, 0, 1, _AF_VSOCK)]
    body += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    # A pair of datagram sockets can send to others by name; one of streams is connected for good.
    body += [(_EQUAL, 0, 5, calls.socketpair), (_LOAD, 0, 0, _SECOND), (_AND, 0, 0, _TYPE_MASK)]
    body += [(_EQUAL, 0, 1, _SOCK_DGRAM), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    # What types into a terminal, whose reader may be the shell outside.
    body += [(_EQUAL, 0, 5, calls.ioctl), (_LOAD, 0, 0, _SECOND), (_EQUAL, 1, 0, _TIOCSTI)]
    body += [(_EQUAL, 0, 1, _TIOCLINUX), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ALLOW)]
    yield from ((_LOAD, 0, 0, _ARCH), (_EQUAL, 0, len(body), calls.arch), *body)


def shell_words(snapshot: ShellSnapshot | None, text: bytes) -> tuple[bytes, ...]:
    """Return the argv that runs a command in the language of a session's shell, or of sh without one."""
    if snapshot is None:
        return (b"/bin/sh", b"-c", text)
    shell = (snapshot.interpreter.shell,) if snapshot.interpreter else snapshot.argv
    return (*(word.encode() for word in shell), b"-c", text)


def sandboxed(
    words: Sequence[bytes], environment: Mapping[str, str], mark: str, snapshot: ShellSnapshot | None = None
) -> tuple[bytes, ...]:
    """Return the argv that runs ``words`` in the sandbox, with ``environment`` set inside.

    Set outside, a variable such as LD_PRELOAD would run what the caller chose before the sandbox is made. It begins in
    the shell of ``snapshot``, whose users may have exported another HOME. Without a sandbox it prints a line with
    ``mark``, which :func:`refusal` finds, and exits with :data:`STATUS`.
    """
    assigned = [b"%b=%b" % (name.encode(), value.encode()) for name, value in environment.items()]
    # By a shell, for its exit codes 126 and 127; and env would take a name with an equals sign for a variable.
    inside = [*([b"/usr/bin/env", *assigned] if assigned else []), b"/bin/sh", b"-c", b'exec "$@"', b"sh", *words]
    script, mounts = _RUN.text.encode(), _MOUNTS.text.encode()
    found = snapshot.state_home if snapshot else b""
    return (b"/bin/sh", b"-c", script, b"sandbox", MARK.encode() + mark.encode(), _filter(), mounts, found, *inside)


def in_sandbox(command: Command, snapshot: ShellSnapshot, sent: Mapping[str, str]) -> Command:
    """Return a command of a session that runs ``command`` in the sandbox, and so cannot change the session."""
    words = command.argv or shell_words(snapshot, command.text)
    carried, words = carry(words, {**sent, **(command.environment or {})})
    argv = sandboxed(words, {}, command.sandbox, snapshot)
    return replace(command, text=b"", argv=argv, environment=carried or None, sent=None)


def carry(words: tuple[bytes, ...], environment: Mapping[str, str]) -> tuple[dict[str, str], tuple[bytes, ...]]:
    """Return variables to set outside of the sandbox, and the argv that runs ``words`` with ``environment`` inside it.

    Outside, the values have names that steer no program. They are not in the argv, which every user of the machine can
    read (ps(1)); the environment of a process is read by its own user alone.
    """
    carried, steps = dict[str, str](), []
    for number, (name, value) in enumerate(environment.items()):
        carrier = f"CONNMGR_GIVEN_{number}"
        carried[carrier] = value
        # By `command`, or a name that the shell keeps to itself, such as UID, would end it (POSIX.1-2017, 2.8.1).
        steps.append(f'command export {name}="${carrier}"; unset {carrier}; ')
    if not steps:
        return carried, words
    return carried, (b"/bin/sh", b"-c", "".join(steps).encode() + b'exec "$@"', b"sh", *words)


def refusal(mark: str, exit_code: int, stderr: bytes) -> ReadOnlyUnavailable | None:
    """Return the error of a program that did not run for want of a sandbox; None if it ran."""
    _, sign, why = stderr.partition(f"{MARK}{mark}: ".encode())
    if exit_code != STATUS or not sign:
        return None
    reason = in_one_line(why.decode(errors="replace"))
    return ReadOnlyUnavailable(
        f"The token may only look, and this machine has no sandbox to run a command in: {reason}. Nothing was run. "
        "Install bubblewrap there."
    )
