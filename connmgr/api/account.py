"""What is known of a request while it is answered: for its log line, its entry in the audit trail, and the counts."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

import flask

from connmgr.api.auth import Caller
from connmgr.errors import TokenRevoked

Piece = TypeVar("Piece")


@dataclass
class Account:
    """One request: ``about`` is what it says that it is about, ``details`` are names and numbers of how it went.

    Neither holds what the request carried: no secret, no content of a file, no output.
    """

    id: str
    began: float
    action: str | None = None
    audited: bool = False
    about: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    authority: dict[str, Any] = field(default_factory=dict)
    """By what it was done, or refused: ``token`` and ``tokenName``, ``rule``, ``approval``; empty for the owner."""

    parts: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)
    """What it did to a connection or a category each, with details, for an entry of its own in the audit trail."""

    begun: int | None = None
    """The number of the entry of the audit trail that said that it begins."""

    held: ExitStack = field(default_factory=ExitStack)
    """What is held until it is answered: until the answer is sent, where that is streamed."""

    client: str | None = None
    caller: Caller | None = None
    code: str | None = None


def begin() -> None:
    """Open the account of a request."""
    # No secret; and random bytes of the system's would cost a switch of threads.
    flask.g.account = Account(f"{random.getrandbits(32):08x}", time.perf_counter())


def account() -> Account:
    """Return the account of the request that is being answered."""
    found: Account = flask.g.account
    return found


def detail(**details: Any) -> None:
    """Add to the details of this request."""
    account().details.update(details)


def part(what: dict[str, str], **details: Any) -> None:
    """Note ``details`` of what this request did to one thing, a ``connection`` or a ``category``."""
    account().parts.append((what, details))


def caller() -> Caller:
    """Return who sent this request, to an endpoint that is not public."""
    found = account().caller
    assert found is not None, "a public endpoint has no caller"  # noqa: S101 - a fault of the endpoint's declaration
    return found


def require_valid() -> None:
    """Raise :class:`TokenRevoked` if the caller's token is not valid any more, as it was when the request came."""
    if caller().ended:
        raise TokenRevoked("The token is not valid any more.")


def while_valid(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield ``pieces`` of what is transferred for this request.

    :raises TokenRevoked: the caller's token is not valid any more.
    """
    asking = caller()
    return iter(pieces) if asking.live is None else _until_ended(pieces, asking)


def _until_ended(pieces: Iterable[Piece], asking: Caller) -> Iterator[Piece]:
    for piece in pieces:
        if asking.ended:
            raise TokenRevoked("The token is not valid any more.")
        yield piece
