"""What the groups of the client's methods share: how a message of the contract is sent, and its answer read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from connmgr.contract.common import Elevate, Saved
from connmgr.contract.message import M, Message, from_json, given_json


class Post(Protocol):
    """Sends fields to an endpoint and returns its answer."""

    def __call__(self, path: str, /, **fields: Any) -> Any: ...


class Group:
    """Endpoints below one path."""

    def __init__(self, post: Post) -> None:
        self._post = post

    def _ask(self, path: str, request: Message | None, answer: type[M]) -> M:
        """Send a request, or one without fields, and return its answer."""
        return from_json(answer, self._tell(path, request))

    def _tell(self, path: str, request: Message | None = None) -> Any:
        """Send a request, or one without fields, and return the members of the answer."""
        return self._post(path, **({} if request is None else given_json(request)))


def words_of(argv: Sequence[str] | None) -> list[str] | None:
    """Return an argv as a request has it."""
    # list() would split a string into letters; unchanged, the daemon refuses it.
    return argv if argv is None or isinstance(argv, str) else list(argv)  # type: ignore[return-value]


def saved_of(saved: Mapping[str, Any] | None) -> Saved | None:
    """Return a saved command and its ``arguments`` as a request has them."""
    return None if saved is None else Saved(**saved)


def elevate_of(elevate: Mapping[str, str] | None) -> Elevate | None:
    """Return the ``user`` to become, and the ``password``, as a request has them."""
    return None if elevate is None else Elevate(**elevate)
