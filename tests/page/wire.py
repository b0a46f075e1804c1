"""The page's way to its session, as plain requests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from connmgr.api.page_files import PAGE
from tests.api.wire import Answer, bearer, send
from tests.daemon import Daemon

VIEWS = re.findall(r'^  \[\s*"(?:\w+/)?(\w+)",\s+"\w",', (PAGE / "main.js").read_text(), re.MULTILINE)
"""The names of all views, by the table in the page's frame."""


@dataclass(frozen=True)
class PageSession:
    """A session of the page, without the page."""

    url: str
    token: str

    @property
    def authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def send(self, path: str, /, **fields: Any) -> Answer:
        """Send a request of the session."""
        return send(self.url, path, fields, self.authorization)


def ticket_of(daemon: Daemon, authorization: dict[str, str] | None = None) -> str:
    """Return a ticket for the page, of the owner or whoever sends ``authorization``."""
    answer = send(daemon.url, "/web/ticket", {}, authorization or bearer(daemon))
    assert answer.status == 200, answer.body
    return str(answer.json["ticket"])


def login(daemon: Daemon, authorization: dict[str, str] | None = None) -> PageSession:
    """Return a new session of the page, of the owner or whoever sends ``authorization``."""
    answer = send(daemon.url, "/web/login", {"ticket": ticket_of(daemon, authorization)})
    assert answer.status == 200, answer.body
    return PageSession(daemon.url, answer.json["sessionToken"])
