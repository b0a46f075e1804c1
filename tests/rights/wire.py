"""Tokens that the owner of a daemon creates, and requests of their holders."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.api.wire import Answer, send
from tests.daemon import Daemon


class Holder(NamedTuple):
    """A holder of a token: the daemon's address, the token's uuid, and its text."""

    url: str
    id: str
    secret: str

    def send(self, path: str, /, **body: Any) -> Answer:
        """Send a request with the token as bearer."""
        return send(self.url, path, body, {"Authorization": f"Bearer {self.secret}"})

    def ok(self, path: str, /, **body: Any) -> Any:
        """Send a request that must succeed, and return its answer."""
        answer = self.send(path, **body)
        assert answer.status == 200, (path, answer.status, answer.json)
        return answer.json if answer.body else None

    def refused(self, path: str, /, **body: Any) -> str:
        """Send a request that must not succeed, and return the code of the error."""
        answer = self.send(path, **body)
        assert answer.status >= 400, (path, answer.status, answer.json)
        return answer.code

    def create(self, *scopes: str, **members: Any) -> Holder:
        """Create a token below this one."""
        made = self.ok("/token/create", **{"name": "below", "expires": 600, "scopes": list(scopes), **members})
        return Holder(self.url, made["id"], made["token"])


def create(daemon: Daemon, *scopes: str, **members: Any) -> Holder:
    """Create a token as the owner."""
    body: dict[str, Any] = {"name": "test", "expires": 600, "scopes": list(scopes), **members}
    made = daemon.client.post("/token/create", **body)
    return Holder(daemon.url, made["id"], made["token"])
