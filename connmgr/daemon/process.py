"""The daemon's process: its log, its limits and memory, the signals that stop it, and the limit of its stopping."""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import re
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from connmgr.errors import StartupError
from connmgr.processes import harden

SWITCH_SECONDS = 0.0002
"""A thread that computes gives way to others after this time. A request gives up the interpreter at each of its calls
to the system; with Python's 5 ms it would wait that long after each, beside a single request that computes. Where 16
clients ask at once, each halving costs a few per cent of the processor, and so this is not shorter."""

MAX_OPEN_FILES = 16384
"""Soft limit of open files, as far as the hard limit allows."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
LARGE_BLOCK_BYTES = 256 * 1024
KEPT_BYTES = 1024 * 1024

FINISH_SECONDS = 5.0
"""Longest wait for running requests to end by themselves."""

CLOSE_SECONDS = 2.5
"""Longest wait for shells, and for the requests that wait for them, to end."""

WATCHDOG_SECONDS = 9.0
"""Longest time to stop; then the process exits in any case."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

# Made once, because making an encoder takes longer than encoding.
_ENCODER = json.JSONEncoder(default=str)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")

logger = logging.getLogger("connmgr.daemon")


def prepare_process(log_level: str, log_format: str) -> None:
    """Set up logging and limits, and protect the process's memory.

    :raises StartupError: the system does not let the process protect its memory.
    """
    start_logging(log_level, log_format)
    _raise_file_limit()
    _return_large_blocks()
    collect_when_quiet()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        harden()
    except OSError as error:
        raise StartupError(f"The process cannot keep its memory from other programs: {error.strerror}.") from error


def start_logging(level: str, style: str) -> None:
    """Log messages of ``level`` and above to stderr, in the ``style`` ``text`` or ``json``."""
    output = logging.StreamHandler()
    output.setFormatter(JsonLines() if style == "json" else TextLines())
    # Below warnings, libraries log nothing useful, and perhaps secrets.
    logging.basicConfig(handlers=[output], level=logging.WARNING)
    logging.getLogger("connmgr").setLevel(level.upper())
    # The lines do not contain these values, which logging would look up for each line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # A closed stderr must not end the daemon.
    logging.raiseExceptions = False


class TextLines(logging.Formatter):
    """Time, level, origin and message in one line; a traceback follows indented."""

    def format(self, record: logging.LogRecord) -> str:
        lines = [f"{self.formatTime(record)} {record.levelname} {record.name}: {record.getMessage()}"]
        if record.exc_info:
            lines += [f"    {line}" for line in self.formatException(record.exc_info).splitlines()]
        return "\n".join(_CONTROL.sub(_escaped, line) for line in lines)


class JsonLines(logging.Formatter):
    """One JSON object per line: ``time``, ``level``, ``logger``, and ``message`` or the properties of a request."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        entry = {"time": moment.replace("+00:00", "Z"), "level": record.levelname.lower(), "logger": record.name}
        facts = getattr(record, "facts", None)
        entry |= (
            {name: value for name, value in facts.items() if value is not None}
            if facts
            else {"message": record.getMessage()}
        )
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return _ENCODER.encode(entry)


def _escaped(control: re.Match[str]) -> str:
    return ascii(control[0])[1:-1]


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _return_large_blocks() -> None:
    """Make glibc return blocks of 256 KiB and more as soon as they are freed.

    By default that threshold grows with use (mallopt(3)): after eight commands with 12 MB of output each the daemon
    kept 230 MiB instead of 5. Up to 1 MiB stays at an arena's end, which sending a file's pieces reuses.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
            libc.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


COLLECT_AFTER = 10
"""Collections of the middle generation after which a full one is due: Python's own figure."""

COLLECT_AT_LATEST = 50
"""After so many it does not wait for a moment in which nobody computes: 350,000 objects may be garbage by then."""

COLLECT_IN_ANY_CASE = 500
"""After so many it does not wait for the end of its rest either."""

COLLECT_REST = 100.0
"""Rest after a full collection, as a multiple of its time."""

_NEVER = 1 << 30


def collect_when_quiet() -> None:
    """Leave full collections of garbage to :class:`Garbage`."""
    # A full collection stops the interpreter for a microsecond for each object. Python begins it where objects are
    # allocated, and so amid a request that holds many: one that describes 10,000 connections stopped all other requests
    # for 0.1 seconds at a time.
    gc.set_threshold(*gc.get_threshold()[:2], _NEVER)


class Garbage:
    """Collects all garbage from time to time. Safe to use from several threads.

    Requests that allocate much make it due several times a second, although they leave no garbage: reference counts
    free nearly all. So it takes at most a hundredth of the time, unless much has gathered meanwhile.
    """

    def __init__(self) -> None:
        self._rests_until = 0.0

    def collect_if_due(self, *, quiet: bool) -> None:
        """Collect it if that is due, and nobody computes (``quiet``) or it has been due for long."""
        due = gc.get_count()[2]
        if due < (COLLECT_AFTER if quiet else COLLECT_AT_LATEST):
            return
        began = time.monotonic()
        if began < self._rests_until and due < COLLECT_IN_ANY_CASE:
            return
        gc.collect()
        ended = time.monotonic()
        self._rests_until = ended + COLLECT_REST * (ended - began)


def notify_ready() -> None:
    """Tell systemd that the daemon is ready, if systemd has started it and waits for that.

    The socket is named by ``NOTIFY_SOCKET``, which is removed from the environment: shells do not get it.
    """
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to_systemd:
        try:
            # @ stands for the null byte of an abstract address (sd_notify(3)).
            to_systemd.connect("\0" + address[1:] if address.startswith("@") else address)
            to_systemd.send(b"READY=1")
        except OSError as error:
            logger.warning("Cannot tell systemd that the daemon is ready: %s.", error.strerror)


class Stop:
    """Whether the daemon is to stop; ``wake`` wakes the thread that checks this."""

    def __init__(self) -> None:
        self.requested = False
        self.wake: Callable[[], None] = _nothing
        for number in _SIGNALS:
            signal.signal(number, self.request)

    def request(self, *_: Any) -> None:
        """Request the stop. A signal handler may call this, so it takes no lock."""
        self.requested = True
        self.wake()


def ignore_signals() -> None:
    """Ignore further signals: at exit the interpreter removes the handlers before the process ends."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _nothing() -> None: ...


def guard(last_wish: Callable[[], None]) -> None:
    """Call ``last_wish`` and exit with 0 after :data:`WATCHDOG_SECONDS`, even if the daemon hangs."""

    def exit_now() -> None:
        try:
            last_wish()
        finally:
            os._exit(0)

    watchdog = threading.Timer(WATCHDOG_SECONDS, exit_now)
    watchdog.daemon = True
    watchdog.start()
