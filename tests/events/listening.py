"""Clients of the stream of events, written from the protocol alone."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any

from wsproto.events import CloseConnection, TextMessage

from tests.api.wire import address
from tests.deadlines import DEADLINE_SECONDS
from tests.streams.wire import Stream

Line = dict[str, Any]


class Listening:
    """A request for lines of events with a bearer token, which has begun to listen."""

    def __init__(self, url: str, secret: str, **request: Any) -> None:
        self._connection = http.client.HTTPConnection(*address(url), timeout=DEADLINE_SECONDS)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {secret}"}
        self._connection.request("POST", "/event/stream", json.dumps(request).encode(), headers)
        self.answer = self._connection.getresponse()
        assert self.answer.status == 200, self.answer.read()
        self.begun = self.line()
        assert (self.begun["kind"], self.begun["change"]) == ("stream", "begun")

    def line(self) -> Line:
        """Return the next line, other than a sign of life."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            text = self.answer.readline()
            assert text, "the stream has ended"
            # Signs of life keep the socket's own limit from passing.
            assert time.monotonic() < deadline, "nothing has happened"
            line: Line = json.loads(text)
            if line["change"] != "alive":
                return line

    def until(self, kind: str, change: str, **members: Any) -> Line:
        """Return the next line with these members; lines before it are skipped."""
        return self.lines_until(kind, change, **members)[-1]

    def lines_until(self, kind: str, change: str, **members: Any) -> list[Line]:
        """Return the lines up to the first one with these members."""
        wanted = {"kind": kind, "change": change, **members}
        lines: list[Line] = []
        while not lines or not wanted.items() <= lines[-1].items():
            try:
                lines.append(self.line())
            except AssertionError as error:
                raise AssertionError(f"{error}: {wanted} is not among {lines}") from None
        return lines

    def rest(self) -> list[Line]:
        """Return the lines up to the end, which must come."""
        return [json.loads(text) for text in self.answer]

    def close(self) -> None:
        self.answer.close()
        self._connection.close()

    def __enter__(self) -> Listening:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ListeningSocket:
    """A WebSocket of events, opened with a token or a ticket."""

    def __init__(self, url: str, secret: str | None, *, ticket: str | None = None, **request: Any) -> None:
        offered = [] if ticket is None else ["connmgr.v1", f"connmgr.ticket.{ticket}"]
        self.stream = Stream(url, "/event/stream", secret, subprotocols=offered)
        self.stream.say(json.dumps(request))
        self.lines: list[Line] = []
        self.code: int | None = None

    def line(self) -> Line:
        """Return the next line."""
        while not self.lines:
            assert self.code is None, "the stream has ended"
            self._receive()
        return self.lines.pop(0)

    def rest(self) -> list[Line]:
        """Return the lines up to the end, which must come."""
        while self.code is None:
            self._receive()
        lines, self.lines = self.lines, []
        return lines

    def _receive(self) -> None:
        self.stream._read()
        for event in self.stream.connection.events():
            if isinstance(event, TextMessage):
                assert event.message_finished
                self.lines.append(json.loads(event.data))
            elif isinstance(event, CloseConnection):
                self.code = int(event.code)

    def close(self) -> None:
        self.stream.close()

    def __enter__(self) -> ListeningSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
