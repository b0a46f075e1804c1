"""``/terminal``: terminals that run on when no client is attached."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from connmgr.client.endpoints import Group, Post, given, what_runs
from connmgr.client.http import HttpSession
from connmgr.client.pipe import Pipe
from connmgr.client.websocket import open_websocket


class TerminalOutput(NamedTuple):
    """Output from an offset on; ``next`` is the offset after it, ``eof`` means that there will be no more."""

    data: bytes
    next: int
    offset: int
    eof: bool


class Terminals(Group):
    """``/terminal``; a terminal is named by its uuid. Answers are dicts as in docs/API.md."""

    def __init__(self, post: Post, http: HttpSession) -> None:
        super().__init__(post)
        self._http = http

    def open(
        self,
        connection: str,
        *,
        session: str | None = None,
        command: str | None = None,
        argv: Sequence[str] | None = None,
        saved: Mapping[str, Any] | None = None,
        columns: int | None = None,
        rows: int | None = None,
        term: str | None = None,
        record: bool | None = None,
        send_env: Mapping[str, str] | None = None,
        elevate: Mapping[str, str] | None = None,
    ) -> str:
        """Open a terminal with the login shell, ``command`` or the program ``argv`` in it, and return its uuid.

        ``send_env`` are variables of the client's environment; those that the connection takes are set.
        ``elevate`` opens it by sudo as its ``user``.
        """
        options = given(session=session, columns=columns, rows=rows, term=term, record=record)
        options |= given(sendEnv=send_env, elevate=elevate)
        answer = self._post("/terminal/open", connection=connection, **what_runs(command, argv, saved), **options)
        return str(answer["terminal"])

    def attach(self, terminal: str, *, watch: bool = False) -> Pipe:
        """Return output, beginning with a drawing of the screen, and input; closing it keeps the terminal open.
        With ``watch`` it accepts no input and does not set the size."""
        query = "?watch=true" if watch else ""
        return Pipe(open_websocket(self._http, f"/terminal/attach/{quote(terminal, safe='')}{query}"))

    def input(self, terminal: str, data: bytes) -> None:
        """Send input, like typed keys."""
        encoded = base64.b64encode(data).decode()
        self._post("/terminal/input", terminal=terminal, data=encoded, encoding="base64")

    def output(
        self, terminal: str, offset: int = 0, *, wait: float | None = None, max_bytes: int | None = None
    ) -> TerminalOutput:
        """Return output from ``offset`` on; ``wait`` is the longest wait for some, in seconds."""
        options = given(wait=wait, maxBytes=max_bytes)
        answer = self._post("/terminal/output", terminal=terminal, offset=offset, encoding="base64", **options)
        return TerminalOutput(base64.b64decode(answer["data"]), answer["next"], answer["offset"], answer["eof"])

    def screen(
        self, terminal: str, *, wait: float | None = None, since: int | None = None, contains: str | None = None
    ) -> dict[str, Any]:
        """Return the visible screen; ``wait`` up to so many seconds for output after ``since``, or for a text."""
        options = given(wait=wait, since=since, contains=contains)
        return dict(self._post("/terminal/screen", terminal=terminal, **options))

    def resize(self, terminal: str, columns: int, rows: int) -> None:
        """Set the size, in characters."""
        self._post("/terminal/resize", terminal=terminal, columns=columns, rows=rows)

    def query(self, connection: str | None = None) -> list[dict[str, Any]]:
        """Describe the terminals, or those of the connections that the filter matches."""
        return list(self._post("/terminal/query", **given(connectionFilter=connection))["terminals"])

    def close(self, terminal: str) -> None:
        """End a terminal and all programs in it."""
        self._post("/terminal/close", terminal=terminal)

    def ticket(self, terminal: str) -> str:
        """Return a ticket with which a page of the browser can attach once."""
        return str(self._post("/terminal/ticket", terminal=terminal)["ticket"])
