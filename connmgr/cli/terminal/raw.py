"""The user's terminal while a remote program draws on it: in raw mode, with keys of its own, restored afterwards."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping

from connmgr.cli.standard_streams import Session
from connmgr.streams.escapes import Escapes
from connmgr.streams.frames import MAX_SIDE

ESCAPE = "~"
"""The usual character that begins a key for this program rather than for the remote one, as with ssh."""

SUSPEND = b"\x1a"
_LINE = "\r\n"

Meaning = tuple[str, Callable[[], None]]
"""What a key does: its description for a person, and the action."""

DEFAULT_SIZE = (80, 24)
RESET_MODES = {
    b"1": b"\x1b[?1l",
    b"47": b"\x1b[?47l",
    b"1000": b"\x1b[?1000l",
    b"1002": b"\x1b[?1002l",
    b"1003": b"\x1b[?1003l",
    b"1004": b"\x1b[?1004l",
    b"1005": b"\x1b[?1005l",
    b"1006": b"\x1b[?1006l",
    b"1015": b"\x1b[?1015l",
    b"1047": b"\x1b[?1047l",
    b"1049": b"\x1b[?1049l",
    b"2004": b"\x1b[?2004l",
}
"""The sequence that ends each mode that would hinder a person: other screen, mouse reports, bracketed paste."""

_MODE = re.compile(rb"\x1b\[\?([0-9;]{1,128})([hl])|\x1b([=>])")
_LONGEST = 132
"""Length in bytes of the longest sequence that ``_MODE`` matches."""

CURSOR = b"25"
KEYPAD = b"="


def on_terminal(
    session: Session,
    escape: str | None,
    *,
    more: Mapping[bytes, Meaning] | None = None,
    leave: Meaning | None = None,
    types: bool = True,
) -> int | None:
    """Run ``session`` on this terminal, return the result of its ``run``, and restore the terminal.

    ``escape`` is the character that begins a key for this program at the beginning of a line. ``more`` are such keys
    besides ssh's own, each with its description. ``leave`` is the action of the escape character and a dot, by default
    to leave the session. Unless it ``types``, the remote program gets neither keys nor this terminal's size.
    """
    pipe, local = session.pipe, session.local
    assert pipe is not None and local is not None, "a terminal is lent to a pipe"  # noqa: S101, PT018
    with RawTerminal(sys.stdin.fileno()) as raw:

        def resize() -> None:
            if types and pipe.exit_status is None:
                pipe.resize(*size_of(sys.stdin.fileno()))

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
            local.typed = escapes.typed if types else lambda data: escapes.typed(data)[:0]
        local.shown = raw.modes.see
        session.call(signal.SIGWINCH, resize)
        session.call(signal.SIGTSTP, suspend)
        # The program that stopped this one may have changed the terminal meanwhile.
        session.call(signal.SIGCONT, go_on)
        status = session.run()
    if status is None:
        # The cursor may be anywhere in a line.
        sys.stderr.write("\n")
    return status


def _with_help(escape: str, meanings: Mapping[bytes, Meaning]) -> dict[bytes, Callable[[], None]]:
    lines = [f" {escape}{'^Z' if key == SUSPEND else key.decode()}  {text}" for key, (text, _) in meanings.items()]
    lines += [f" {escape}?  this list", f" {escape}{escape}  send {escape}"]

    def show() -> None:
        sys.stderr.write(_LINE + _LINE.join([f"{escape} is heard at the beginning of a line.", *lines, ""]))
        sys.stderr.flush()

    return {key: call for key, (_, call) in meanings.items()} | {b"?": show}


class Modes:
    """The modes that output has left a terminal in."""

    def __init__(self) -> None:
        self._on: dict[bytes, bytes] = {}
        self._tail = b""

    def see(self, output: bytes | memoryview) -> None:
        """Note the modes that ``output`` sets; it may come in pieces of any size."""
        if not self._tail and b"\x1b" not in (whole := bytes(output)):
            return
        whole = self._tail + bytes(output)
        for found in _MODE.finditer(whole):
            if found[3]:
                self._set(KEYPAD, b"\x1b>", on=found[3] == KEYPAD)
            for mode in (found[1] or b"").split(b";"):
                if mode == CURSOR:
                    self._set(mode, b"\x1b[?25h", on=found[2] == b"l")
                elif mode in RESET_MODES:
                    self._set(mode, RESET_MODES[mode], on=found[2] == b"h")
        begun = whole.rfind(b"\x1b", -_LONGEST)
        self._tail = whole[begun:] if begun >= 0 and not _MODE.match(whole, begun) else b""

    def ending(self) -> bytes:
        """Return the sequences that end all modes and colours; empty if none is on."""
        return b"".join([*self._on.values(), b"\x1b[0m"]) if self._on else b""

    def _set(self, mode: bytes, ending: bytes, *, on: bool) -> None:
        if on:
            self._on[mode] = ending
        else:
            self._on.pop(mode, None)


class RawTerminal:
    """The terminal of standard input: raw within the block, restored afterwards, whatever happens."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before = termios.tcgetattr(descriptor)
        self.modes = Modes()

    def __enter__(self) -> RawTerminal:
        self.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def enter(self) -> None:
        """Switch to raw mode: every key is passed on."""
        # TCSADRAIN would wait for output that may never be read.
        tty.setraw(self._descriptor, termios.TCSANOW)

    def leave(self) -> None:
        """Restore the terminal, and end the modes that the remote program has left on."""
        # The terminal may be gone, for example after a hang-up.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._descriptor, termios.TCSANOW, self._before)
        with contextlib.suppress(OSError):
            os.write(sys.stdout.fileno(), self.modes.ending())

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the terminal within the block."""
        self.leave()
        try:
            yield
        finally:
            self.enter()


def size_of(descriptor: int) -> tuple[int, int]:
    """Return columns and rows of the terminal, or a usual size if it reports none."""
    try:
        columns, rows = os.get_terminal_size(descriptor)
    except OSError:
        return DEFAULT_SIZE
    if not columns or not rows:
        return DEFAULT_SIZE
    return min(columns, MAX_SIDE), min(rows, MAX_SIDE)
