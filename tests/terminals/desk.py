"""Users of terminals: requests by HTTP, and attached clients."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.api.wire import Answer, send
from tests.deadlines import DEADLINE_SECONDS
from tests.streams.wire import Stream

ENTER = "\r"
POLL_SECONDS = 20.0


class RefusedError(Exception):
    """The daemon answered with an error."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"{answer.status} {answer.body.decode()}")
        self.status = answer.status
        self.code = answer.code
        self.message = answer.message


class Opened:
    """An open terminal."""

    def __init__(self, desk: Desk, id: str) -> None:
        self.id = id
        self._desk = desk

    def ask(self, endpoint: str, **request: Any) -> Any:
        """Send a request about this terminal."""
        return self._desk.ask(f"/terminal/{endpoint}", terminal=self.id, **request)

    def type(self, text: str) -> None:
        """Type ``text``."""
        self.ask("input", data=text)

    def screen(self, contains: str | None = None, **request: Any) -> dict[str, Any]:
        """Wait until the screen shows ``contains``, and return it."""
        if contains is not None:
            request |= {"contains": contains, "wait": POLL_SECONDS}
        until = time.monotonic() + DEADLINE_SECONDS
        while True:
            shown: dict[str, Any] = self.ask("screen", **request)
            if contains is None or any(contains in line + " " for line in shown["lines"]):
                return shown
            assert time.monotonic() < until, f"{contains!r} is not on the screen: {shown}"
            assert shown["state"] == "running", f"it ended, and {contains!r} is not on the screen: {shown}"

    def lines(self, contains: str | None = None) -> list[str]:
        """Wait until the screen shows ``contains``, and return its lines that are not empty."""
        return [line for line in self.screen(contains)["lines"] if line]

    @property
    def info(self) -> dict[str, Any]:
        """The terminal's state, as queried."""
        found = [one for one in self._desk.ask("/terminal/query")["terminals"] if one["terminal"] == self.id]
        assert found, "the terminal is not listed"
        return dict(found[0])

    def until_ended(self) -> dict[str, Any]:
        """Wait for the end of its program, and return :attr:`info`."""
        offset, state, until = 0, "running", time.monotonic() + DEADLINE_SECONDS
        while state == "running":
            answer = self.ask("output", offset=offset, wait=POLL_SECONDS)
            assert time.monotonic() < until, f"it runs on: {answer}"
            offset, state = answer["next"], answer["state"]
        return self.info

    def attach(self, *, watch: bool = False, **options: Any) -> Stream:
        """Attach a client."""
        path = f"/terminal/attach/{self.id}" + ("?watch=true" if watch else "")
        stream = Stream(self._desk.url, path, **{"token": self._desk.token, **options})
        self._desk.streams.append(stream)
        return stream


class Desk:
    """A user of the daemon at ``url``, authenticated by ``auth_file``."""

    def __init__(self, url: str, auth_file: Path) -> None:
        self.url = url
        self.streams: list[Stream] = []
        self._opened: list[Opened] = []
        auth = {"type": "local", "authFileContent": auth_file.read_text()}
        handshake = send(url, "/handshake", {"auth": auth, "client": {"type": "api", "name": "test"}})
        self.token = str(handshake.json["sessionToken"])

    def ask(self, path: str, **request: Any) -> Any:
        """Send a request; raise :class:`RefusedError` for an error."""
        answer = send(self.url, path, request, {"Authorization": f"Bearer {self.token}"})
        if answer.status != 200:
            raise RefusedError(answer)
        return answer.json if answer.body else None

    def open(self, connection: str, command: str | None = None, **request: Any) -> Opened:
        """Open a terminal."""
        given = {"command": command} if command is not None else {}
        answer = self.ask("/terminal/open", connection=connection, **given, **request)
        self._opened.append(Opened(self, answer["terminal"]))
        return self._opened[-1]

    def leave(self) -> None:
        """Detach all clients."""
        for stream in self.streams:
            stream.close()
        self.streams.clear()

    def clear(self) -> None:
        """Detach all clients and close all terminals."""
        self.leave()
        for terminal in self._opened:
            try:
                terminal.ask("close")
            except RefusedError as refusal:
                if refusal.code != "unknown_terminal":
                    raise
        self._opened.clear()

    def close(self) -> None:
        self.clear()
