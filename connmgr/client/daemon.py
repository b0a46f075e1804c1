"""The daemon itself: its state, its page, and what changes in it, as it happens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial

from connmgr.client.errors import Answer, ClientError, Unreachable, from_member
from connmgr.client.group import Group, list_of
from connmgr.client.http import HttpSession
from connmgr.client.output import LINES, lines_of
from connmgr.client.repeat import OnRetry, Retry, is_transient
from connmgr.client.wire import Response, WireError
from connmgr.contract.daemon import DaemonStatusResponse as DaemonStatus
from connmgr.contract.daemon import VersionResponse as Version
from connmgr.contract.event import ALIVE, BEGUN, ENDED, STREAM, Event, EventStreamRequest
from connmgr.contract.message import given_json
from connmgr.contract.web import WebConfirmRequest, WebConfirmResponse, WebTicketRequest
from connmgr.contract.web import WebTicketResponse as PageTicket


class DaemonItself(Group):
    """``/daemon``."""

    def version(self) -> Version:
        """Return the versions of the API, the daemon and its runtime."""
        return self._ask("/daemon/version", None, Version)

    def status(self) -> DaemonStatus:
        """Describe the running daemon: its shells and the resources in use."""
        return self._ask("/daemon/status", None, DaemonStatus)

    def stop(self) -> None:
        """Tell the daemon to stop."""
        self._tell("/daemon/stop")


class Page(Group):
    """``/web``."""

    def ticket(self, *, same_user: bool = False) -> PageTicket:
        """Return a ticket that opens the daemon's page with this client's rights; if so, for its own user alone."""
        return self._ask("/web/ticket", WebTicketRequest(same_user=same_user), PageTicket)

    def confirm(self, user: str | None = None, passphrase: str | None = None, *, wait: float = 0) -> float:
        """Show again who uses a page, as the setting ``web-step-up`` asks; return for how many seconds that counts."""
        request = WebConfirmRequest(user=user, passphrase=passphrase, wait=wait)
        return self._ask("/web/confirm", request, WebConfirmResponse).valid

    def logout(self) -> None:
        """End this client's session."""
        self._tell("/web/logout")


SILENCE_SECONDS = 40.0
"""A stream without even a sign of life for this long is broken."""

_AWAY = frozenset({"stopping", "vault_unavailable", "busy", "internal"})
"""Why a stream ends that can be opened again."""


def events(
    http: HttpSession,
    kinds: Sequence[str] | None,
    after: int | None,
    ago: float | None,
    retry_timeout: float,
    on_retry: OnRetry | None,
) -> Iterator[Event]:
    """Yield the events of certain ``kinds`` or all, from now on, ``after`` the number of one, or ``ago`` seconds.

    The first is the line ``begun``: read lists after it, and nothing is missed. When the connection breaks or a daemon
    restarts, the stream is opened again and goes on where it was; ``missed`` says that this was not possible, so that
    lists must be read again. The iteration occupies the client's connection: ask other things with a clone.

    :raises ClientError: the token lacks a scope or has become invalid, or for ``retry_timeout`` seconds no daemon was
        reached.
    """
    retry, has_begun = Retry(retry_timeout, on_retry, is_transient), False
    while True:
        broken: ClientError = Unreachable("The stream of events broke off.", sent=True)
        try:
            with closing(retry.call(partial(_open, http, kinds, after, ago))) as response:
                for event in _read(response):
                    retry.succeeded()
                    about_stream = event.change if event.kind == STREAM else None
                    if about_stream == ENDED:
                        broken = from_member({"code": event.code, "message": event.message})
                        if event.code not in _AWAY:
                            raise broken
                        break
                    # A new stream goes on behind this event, whatever broke the old one.
                    after, ago = event.number, None
                    if about_stream == ALIVE or (about_stream == BEGUN and has_begun):
                        continue
                    has_begun = True
                    yield event
        except (OSError, WireError, EOFError) as error:
            broken = Unreachable(f"The stream of events broke off: {error or type(error).__name__}", sent=True)
        finally:
            # The rest of an answer without an end cannot be read to reuse the connection.
            http.close()
        retry.pause(broken)


def _open(http: HttpSession, kinds: Sequence[str] | None, after: int | None, ago: float | None) -> Response:
    request = EventStreamRequest(kinds=list_of(kinds), after=after, ago=ago)
    with http.answered_within(SILENCE_SECONDS):
        response = http.open("/event/stream", http.encode(**given_json(request)), accept=LINES)
    if response.headers.content_type != LINES:
        response.close()
        raise ClientError("The answer has no lines, so it is not that of a daemon of this version.", "unknown", 200)
    return response


def _read(response: Response) -> Iterator[Event]:
    for line in lines_of(response):
        try:
            members = json.loads(line, object_hook=Answer)
        except ValueError:
            raise ClientError("A line is not JSON, so it is not the daemon's.", "unknown", 200) from None
        yield Event.read(members)
