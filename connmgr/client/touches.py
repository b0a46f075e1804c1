"""Security keys that must be touched, so that a login of the daemon can go on: told to whoever waits for a request."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from connmgr.contract.event import LINK, TOUCH

if TYPE_CHECKING:
    from connmgr.client import Client

WATCHED_SECONDS = 60.0
"""A watch ends after this time: a login waits for a touch no longer than the link may take to open."""


class TouchWatch:
    """Calls ``tell`` with the name of each connection whose login waits for a touch, until :meth:`over`.

    It begins with those of the ``waited`` seconds before, and uses a connection to the daemon and a thread of its own,
    from which ``tell`` is called.
    """

    def __init__(self, client: Client, tell: Callable[[str], None], *, waited: float) -> None:
        self._client = client.clone(WATCHED_SECONDS)
        self._tell = tell
        self._waited = waited
        self._is_over = False
        self._end = threading.Timer(WATCHED_SECONDS, self.over)
        self._end.daemon = True
        self._end.start()
        threading.Thread(target=self._watch, name="touches", daemon=True).start()

    def over(self) -> None:
        """Tell nothing more."""
        self._is_over = True
        self._end.cancel()
        self._client.abandon()

    def _watch(self) -> None:
        from connmgr.client.errors import ClientError

        # Whoever cannot be told of touches, such as a token without the scope, waits without that.
        with contextlib.suppress(ClientError), self._client, self._client.clone() as asking:
            for event in self._client.events([LINK], ago=self._waited, retry_timeout=0):
                if self._is_over:
                    return
                if event.change == TOUCH:
                    # One that is not stored yet has no name.
                    id = event.connection
                    name = "the new connection" if id is None else asking.connection.info([id])[0].path
                    if not self._is_over:
                        self._tell(name)
