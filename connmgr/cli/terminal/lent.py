"""A session that has the user's terminal until it ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

from connmgr.cli.relay.loop import Task
from connmgr.cli.relay.session import Session
from connmgr.cli.terminal.escape import Escapes
from connmgr.cli.terminal.raw import RawTerminal, size_of

SUSPEND = b"\x1a"
LINE = "\r\n"

Meaning = tuple[str, Callable[[], None]]


def on_terminal(
    session: Session,
    escape: str | None,
    *,
    more: Mapping[bytes, Meaning] | None = None,
    leave: Meaning | None = None,
    others: Sequence[Task] = (),
    types: bool = True,
) -> int | None:
    """Run ``session`` on this terminal, return the result of its ``run``, and restore the terminal.

    ``escape`` is the character that begins a key for this program at the beginning of a line. ``more`` are such keys
    besides ssh's own, each with its description. ``leave`` is the action of the escape character and a dot, by default
    to leave the session. Unless it ``types``, the far side gets neither keys nor this terminal's size.
    """
    relay = session.relay
    assert relay is not None, "a terminal is lent to a pipe"  # noqa: S101
    with RawTerminal(sys.stdin.fileno()) as raw:

        def resize() -> None:
            if types and relay.pipe.exit_status is None:
                relay.pipe.resize(*size_of(sys.stdin.fileno()))

        def suspend() -> None:
            with raw.restored():
                before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTSTP)
                signal.signal(signal.SIGTSTP, before)
            resize()

        def go_on() -> None:
            raw.enter()
            resize()

        meanings = {
            b".": leave or ("leave", session.leave),
            SUSPEND: ("suspend this program (Ctrl-Z)", suspend),
            **(more or {}),
        }
        if escape is not None:
            escapes = Escapes(escape, _with_help(escape, meanings))
            relay.typed = escapes.typed if types else lambda data: escapes.typed(data)[:0]
        relay.shown = raw.modes.see
        session.call(signal.SIGWINCH, resize)
        session.call(signal.SIGTSTP, suspend)
        # The program that stopped this one may have changed the terminal meanwhile.
        session.call(signal.SIGCONT, go_on)
        status = session.run(*others)
    if status is None:
        # The cursor may be anywhere in a line.
        sys.stderr.write("\n")
    return status


def _with_help(escape: str, meanings: Mapping[bytes, Meaning]) -> dict[bytes, Callable[[], None]]:
    lines = [f" {escape}{'^Z' if key == SUSPEND else key.decode()}  {text}" for key, (text, _) in meanings.items()]
    lines += [f" {escape}?  this list", f" {escape}{escape}  send {escape}"]

    def show() -> None:
        sys.stderr.write(LINE + LINE.join([f"{escape} is heard at the beginning of a line.", *lines, ""]))
        sys.stderr.flush()

    return {key: call for key, (_, call) in meanings.items()} | {b"?": show}
