"""Kills a command's processes over a second channel, because the supervisor waits for them and takes no orders."""

from __future__ import annotations

import contextlib
import shlex

from connmgr.engine.script import Source, script_argv
from connmgr.errors import OperationError
from connmgr.plugin import Deadline, Transport

TREE = Source(__package__, "tree")
"""The functions that find processes and kill them."""

RESUME = Source(__package__, "resume")
"""The function that continues stopped processes."""

_HANG_UP = Source(__package__, "hang_up")
_HELPER = Source(__package__, "kill_helper")
_KILL_TREE = Source(__package__, "kill_tree")
_SUPERVISOR = Source(__package__, "kill_supervisor")


def kill_tree(transport: Transport, root: int, word: str, cookie: str, timeout: float) -> bool:
    """Kill all processes below ``root``, and all with ``cookie`` in their environment; return whether none is left."""
    # A process may leave its tree (setsid, a double fork). Its environment, which /proc shows and only exec replaces,
    # still has CONNMGR_COMMAND=cookie. The supervisor has `word` in its own environment: a process that has meanwhile
    # got its number has not, and is not touched.
    return _run(transport, script_argv(TREE.text + RESUME.text + _KILL_TREE.text, (str(root), cookie, word)), timeout)


def kill_supervisor(transport: Transport, pid: int, word: str, timeout: float) -> bool:
    """Kill the supervisor ``pid``, started with ``word``; return whether that succeeded. Needs /proc."""
    return _run(transport, script_argv(RESUME.text + _SUPERVISOR.text, (str(pid), word)), timeout)


def kill_helper(transport: Transport, word: str, timeout: float) -> bool:
    """End the helper in whose argv is ``word``, and all that it has started; return whether that could be tried."""
    # The brackets keep the pattern from finding itself.
    return _run(transport, script_argv(TREE.text + _HELPER.text, (f"word=[{word[0]}]{word[1:]}",)), timeout)


def hang_up(transport: Transport, cookie: str, timeout: float) -> bool:
    """Send HUP to all processes of the stream ``cookie``; return whether that could be tried on the remote host."""
    return _run(transport, script_argv(TREE.text + _HANG_UP.text, (cookie,)), timeout)


def _run(transport: Transport, argv: list[str], timeout: float) -> bool:
    # The script carries its own functions and needs nothing of the session: the supervisor waits for the command and
    # reads no orders, and a signal by ssh (RFC 4254, 6.9) would reach one process, as whichever user the server runs.
    deadline = Deadline(timeout)
    try:
        channel = transport.open_channel(argv, timeout=timeout)
    except OperationError:
        # Such as a server's MaxSessions. The caller tries again, and in the end abandons the session.
        return False
    try:
        # A start-up file may have replaced the shell by another one, which reads its commands from standard input.
        with contextlib.suppress(OSError):
            channel.sendall(b"exec " + shlex.join(argv).encode() + b"\n", deadline.left())
            channel.shutdown_write()
        return channel.exit_status(deadline.left()) == 0
    except (OSError, EOFError):
        return False
    finally:
        channel.close()
