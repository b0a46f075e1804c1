"""Global requests of a link, and their answers (RFC 4254, section 4)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from paramiko.message import Message

from connmgr.plugin import Deadline


class Reply:
    """The answer to a global request; the reading thread calls it with the message, or None for a refusal."""

    def __init__(self, when_granted: Callable[[Message], None] = lambda _: None) -> None:
        self._when_granted = when_granted
        self._settled = threading.Event()
        self.granted = False

    def __call__(self, message: Message | None) -> None:
        if message is not None:
            self.granted = True
            self._when_granted(message)
        self._settled.set()

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the answer; return whether it came."""
        return self._settled.wait(timeout)


class GlobalRequests:
    """The requests that wait for answers; answers name no request, but come in the order of the requests.

    The reading thread calls :meth:`answered` and :meth:`end`. ``post`` sends a message.
    """

    def __init__(self, post: Callable[[Message, Deadline], None]) -> None:
        self._post = post
        self._ordering = threading.Lock()
        self._replies: deque[Reply | None] = deque()

    def ask(self, message: Message, deadline: Deadline, reply: Reply | None = None) -> None:
        """Send a request; ``reply`` is called with its answer.

        :raises EOFError | OSError: the connection is gone.
        """
        with self._ordering:
            self._replies.append(reply)
            try:
                self._post(message, deadline)
            except BaseException:
                self._replies.pop()
                raise

    def ask_at_once(self, send: Callable[[], bool]) -> None:
        """Call ``send`` to send a request, unless another thread is sending one; ``send`` returns whether it did."""
        if self._ordering.acquire(blocking=False):
            try:
                self._replies.append(None)
                if not send():
                    self._replies.pop()
            finally:
                self._ordering.release()

    def answered(self, answer: Message | None) -> None:
        """Pass an answer, None for a refusal, to the oldest request."""
        reply = self._replies.popleft() if self._replies else None
        if reply is not None:
            reply(answer)

    def end(self) -> None:
        """Refuse all waiting requests: the link is gone."""
        for reply in list(self._replies):
            if reply is not None:
                reply(None)
