"""What the groups of the client's methods share: how a message of the contract is sent, and its answer read."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from connmgr.client.http import HttpSession
from connmgr.contract.common import Elevate, Saved
from connmgr.contract.message import M, Message, from_json, given_json, replace

Item = TypeVar("Item")


class Group:
    """Endpoints below one path, asked over the session of a client."""

    def __init__(self, http: HttpSession) -> None:
        self._http = http

    def _ask(self, path: str, request: Message | None, answer: type[M], seconds: float | None = None) -> M:
        """Send a request, or one without fields, and return its answer; ``seconds`` is as in :meth:`_tell`."""
        return from_json(answer, self._tell(path, request, seconds))

    def _tell(self, path: str, request: Message | None = None, seconds: float | None = None) -> Any:
        """Send a request, or one without fields, and return the members of the answer.

        It comes within ``seconds``, or within the session's timeout if that is shorter.
        """
        fields = {} if request is None else given_json(request)
        if seconds is None:
            return self._http.post(path, **fields)
        with self._http.answered_within(seconds):
            return self._http.post(path, **fields)

    def _pages(
        self, path: str, request: Message, answer: type[M], read: Callable[[M], tuple[Sequence[Item], int]]
    ) -> Iterator[Item]:
        """Yield the items that the daemon answers page by page.

        ``read`` returns the items of one answer, and how many there are on all pages.
        """
        offset = 0
        while True:
            items, total = read(self._ask(path, replace(request, offset=offset), answer))
            yield from items
            offset += len(items)
            # A page without items ends it too: some may have been removed meanwhile.
            if not items or offset >= total:
                return


def words_of(argv: Sequence[str] | None) -> list[str] | None:
    """Return an argv as a request has it."""
    # list() would split a string into letters; unchanged, the daemon refuses it.
    return argv if argv is None or isinstance(argv, str) else list(argv)  # type: ignore[return-value]


def list_of(items: Sequence[str] | None) -> list[str] | None:
    """Return names, ids or filters as a request has them; None is not given."""
    return None if items is None else list(items)


def base64_of(data: bytes) -> str:
    """Return bytes as a request has them."""
    return base64.b64encode(data).decode()


def saved_of(saved: Mapping[str, Any] | None) -> Saved | None:
    """Return a saved command and its ``arguments`` as a request has them."""
    return None if saved is None else Saved(**saved)


def elevate_of(elevate: Mapping[str, str] | None) -> Elevate | None:
    """Return the ``user`` to become, and the ``password``, as a request has them."""
    return None if elevate is None else Elevate(**elevate)
