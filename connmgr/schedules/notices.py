"""Tells how runs and schedules go: plugins, a command, a webhook; never in the way of what runs.

One thread, ``notices``, tells one after the other, each within its time. What comes while too many wait is dropped, and
the log says so; what tokens' runs bring about comes after the rest, and leaves it room. Nobody is told twice, and
nobody again after a failure.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import itertools
import json
import logging
import os
import queue
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from connmgr.plugin import Deadline
from connmgr.plugin.outside import connected
from connmgr.processes import environment_of_programs
from connmgr.shares import of_tokens

logger = logging.getLogger("connmgr.schedules")

MAX_WAITING = 256
WEBHOOK_SECONDS = 10.0
COMMAND_SECONDS = 30.0
OUTPUT_BYTES = 2000
"""How much of a command's complaint the log gets."""

RunEnded = Callable[..., object]
"""The hook ``connmgr_run_ended``, called with ``run``."""


@dataclass(frozen=True)
class Notice:
    """What happened, as JSON has it, and who is told besides the log.

    ``run`` goes to plugins; ``body`` to the ``command`` and, signed with ``secret``, to the address ``url``.
    """

    body: Mapping[str, Any]
    run: Mapping[str, Any] | None = None
    command: Sequence[str] | None = None
    url: str | None = None
    secret: str = ""
    of_token: bool = False
    """Whether a token's run brought it about, and nobody has asked for it."""

    def __str__(self) -> str:
        """Return what the log calls it."""
        if "schedule" in self.body and "event" in self.body:
            return f"The notice {self.body['event']!r} of the schedule {self.body['schedule']!r}"
        return f"The notice of the run {self.body.get('run')}"


class Notices:
    """Notices on their way. Safe to use from several threads; ``hook`` is that of plugins."""

    def __init__(self, hook: RunEnded) -> None:
        self._hook = hook
        self._waiting: queue.PriorityQueue[tuple[int, int, Notice | None]] = queue.PriorityQueue(MAX_WAITING)
        self._numbers = itertools.count()
        self._of_tokens = 0
        """How many of tokens wait."""

        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def tell(self, notice: Notice) -> None:
        """Tell soon, in the thread of notices; this does not wait."""
        with self._lock:
            if self._closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="notices", daemon=True)
                self._thread.start()
            has_room = not notice.of_token or self._of_tokens < of_tokens(MAX_WAITING)[1]
            try:
                if has_room:
                    self._waiting.put_nowait((int(notice.of_token), next(self._numbers), notice))
                    self._of_tokens += notice.of_token
            except queue.Full:
                has_room = False
        if not has_room:
            logger.warning("A notice is dropped, because %d wait: %s", self._waiting.qsize(), json.dumps(notice.body))

    def close(self, timeout: float) -> None:
        """Tell nothing more; wait for the notice that is on its way."""
        with self._lock:
            self._closed, thread = True, self._thread
        if thread is not None:
            with suppress(queue.Full):
                self._waiting.put_nowait((-1, 0, None))
            thread.join(timeout)

    def _run(self) -> None:
        while (notice := self._waiting.get()[2]) is not None and not self._closed:
            with self._lock:
                self._of_tokens -= notice.of_token
            for tell in (self._to_plugins, _to_command, _to_webhook):
                try:
                    tell(notice)
                except Exception as error:  # noqa: BLE001 - whoever is told must not end the thread
                    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                    logger.warning("%s did not arrive: %s", notice, reason)

    def _to_plugins(self, notice: Notice) -> None:
        if notice.run is not None:
            self._hook(run=notice.run)


def _to_command(notice: Notice) -> None:
    if not notice.command:
        return
    process = subprocess.Popen(  # noqa: S603 - the owner's own command
        list(notice.command),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=environment_of_programs(),
    )
    try:
        _, complaint = process.communicate(json.dumps(notice.body).encode(), COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise TimeoutError(f"The command {notice.command[0]!r} ran longer than {COMMAND_SECONDS:g} s.") from None
    if process.returncode:
        told = complaint[-OUTPUT_BYTES:].decode(errors="replace").strip()
        command = notice.command[0]
        logger.warning("%s: the command %r exited with %d: %s", notice, command, process.returncode, told)


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return the value of ``X-Connmgr-Signature``."""
    code = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256)
    return f"sha256={code.hexdigest()}"


def _to_webhook(notice: Notice) -> None:
    if notice.url is None:
        return
    parts = urlsplit(notice.url)
    body, timestamp = json.dumps(notice.body).encode(), str(int(time.time()))
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "connmgr",
        "X-Connmgr-Timestamp": timestamp,
        "X-Connmgr-Signature": signature(notice.secret, timestamp, body),
    }
    host = parts.hostname or ""
    context = ssl.create_default_context() if parts.scheme == "https" else None
    try:
        with connected(host, parts.port, context, Deadline(WEBHOOK_SECONDS)) as connection:
            connection.request("POST", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), body, headers)
            status = connection.getresponse().status
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(None, f"{parts.hostname} did not answer as a web server does.") from error
    if not 200 <= status < 300:
        logger.warning("%s: the webhook at %s answered with status %d.", notice, parts.hostname, status)
