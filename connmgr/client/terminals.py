"""``/terminal`` and ``/recording``: terminals that run on when no client is attached, and what they printed."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from connmgr.client.group import Group, base64_of, elevate_of, saved_of, words_of
from connmgr.client.pipe import Pipe, open_websocket
from connmgr.contract import terminal as messages
from connmgr.contract.recording import (
    RecordingQueryRequest,
    RecordingRequest,
    RecordingSearchRequest,
    RecordingSearchResponse,
)


class TerminalOutput(NamedTuple):
    """Output from an offset on; ``next`` is the offset after it, ``eof`` means that there will be no more."""

    data: bytes
    next: int
    offset: int
    eof: bool


class Terminals(Group):
    """``/terminal``; a terminal is named by its uuid. Answers are dicts as in docs/API.md."""

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
        sizes: dict[str, Any] = {"columns": columns, "rows": rows, "term": term, "record": record}
        request = messages.TerminalOpenRequest(
            connection=connection,
            command=command,
            argv=words_of(argv),
            saved=saved_of(saved),
            session=session,
            send_env=send_env,
            elevate=elevate_of(elevate),
            **{name: value for name, value in sizes.items() if value is not None},
        )
        return self._ask("/terminal/open", request, messages.TerminalRequest).terminal

    def attach(self, terminal: str, *, watch: bool = False) -> Pipe:
        """Return output, beginning with a drawing of the screen, and input; closing it keeps the terminal open.
        With ``watch`` it accepts no input and does not set the size."""
        # In the address, because the request for a WebSocket has no body.
        query = "?watch=true" if watch else ""
        return Pipe(open_websocket(self._http, f"/terminal/attach/{quote(terminal, safe='')}{query}"))

    def input(self, terminal: str, data: bytes) -> None:
        """Send input, like typed keys."""
        encoded = base64_of(data)
        self._tell("/terminal/input", messages.TerminalInputRequest(terminal=terminal, data=encoded, encoding="base64"))

    def output(
        self, terminal: str, offset: int = 0, *, wait: float | None = None, max_bytes: int | None = None
    ) -> TerminalOutput:
        """Return output from ``offset`` on; ``wait`` is the longest wait for some, in seconds."""
        # In base64, since output need not be UTF-8, and may be cut within a character.
        limits: dict[str, Any] = {"wait": wait, "max_bytes": max_bytes}
        request = messages.TerminalOutputRequest(
            terminal=terminal,
            offset=offset,
            encoding="base64",
            **{name: value for name, value in limits.items() if value is not None},
        )
        answer = self._ask("/terminal/output", request, messages.TerminalOutputResponse)
        return TerminalOutput(base64.b64decode(answer.data), answer.next, answer.offset, answer.eof)

    def screen(
        self, terminal: str, *, wait: float | None = None, since: int | None = None, contains: str | None = None
    ) -> dict[str, Any]:
        """Return the visible screen; ``wait`` up to so many seconds for output after ``since``, or for a text."""
        request = messages.TerminalScreenRequest(terminal=terminal, wait=wait or 0, since=since, contains=contains)
        return dict(self._tell("/terminal/screen", request))

    def resize(self, terminal: str, columns: int, rows: int) -> None:
        """Set the size, in characters."""
        self._tell("/terminal/resize", messages.TerminalResizeRequest(terminal=terminal, columns=columns, rows=rows))

    def query(self, connection: str | None = None) -> list[dict[str, Any]]:
        """Describe the terminals, or those of the connections that the filter matches."""
        request = messages.TerminalQueryRequest(connection_filter="*" if connection is None else connection)
        return list(self._tell("/terminal/query", request)["terminals"])

    def close(self, terminal: str) -> None:
        """End a terminal and all programs in it."""
        self._tell("/terminal/close", messages.TerminalRequest(terminal=terminal))

    def ticket(self, terminal: str) -> str:
        """Return a ticket with which a page of the browser can attach once."""
        return self._ask(
            "/terminal/ticket", messages.TerminalRequest(terminal=terminal), messages.TerminalTicketResponse
        ).ticket


class Recordings(Group):
    """``/recording``; a recording has the uuid of its terminal."""

    def query(self, connection: str | None = None) -> list[dict[str, Any]]:
        """Describe the recordings, the newest first, or those of the connections that the filter matches."""
        request = RecordingQueryRequest(connection_filter="*" if connection is None else connection)
        return list(self._tell("/recording/query", request)["recordings"])

    def read(self, recording: str) -> bytes:
        """Return a recording as an asciicast, version 3."""
        return bytes(self._tell("/recording/read", RecordingRequest(recording=recording)))

    def search(self, contains: str, recordings: Sequence[str] | None = None) -> RecordingSearchResponse:
        """Return the lines that contain a text, in the given recordings or in all."""
        request = RecordingSearchRequest(contains=contains, recordings=recordings)
        return self._ask("/recording/search", request, RecordingSearchResponse)
