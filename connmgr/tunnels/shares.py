"""What clients of tunnels may take of the daemon: descriptors, and threads that dial for them."""

from __future__ import annotations

from collections.abc import Callable

from connmgr.processes import most_open_files
from connmgr.shares import Shares, of_tokens

DESCRIPTORS = 3 / 8
"""Part of the descriptors of the daemon that clients of tunnels may have. Whoever can connect to a port of this machine
could take them all otherwise."""

OWNERS_END, TOKENS_END = 7 / 8, 3 / 4
"""Parts of the descriptors of the daemon, whoever has them, below which clients of tunnels are served."""

STREAM_DESCRIPTORS = 3
"""Those of a client: its own, and the two of a stream over ssh."""

RELAY_DESCRIPTORS = 6
"""Those that a process of this machine has in place of such a stream: its pipes, and what tells of its end."""

DIALS = 512
"""Most streams of all tunnels that are being opened at the same time, each in a thread of its own: a host that drops
packets makes that long."""

Holder = str | None
Serve = Callable[[], object]


class TunnelShares:
    """What the clients of all tunnels have; ``holder`` is whose share the tunnel counts for, None for the owner.

    Safe to use from several threads, except for the waiting for threads, which belongs to the loop's.
    """

    def __init__(self) -> None:
        self._limit = most_open_files()
        descriptors = int(self._limit * DESCRIPTORS)
        self._descriptors = Shares(*of_tokens(descriptors), whole=descriptors)
        self._dials = Shares(*of_tokens(DIALS), whole=DIALS)
        self._waiting: dict[Serve, Holder] = {}

    def take(self, holder: Holder, count: int, descriptor: int) -> str | None:
        """Count ``count`` descriptors more, of which one is ``descriptor``; return why that cannot be, or None."""
        # The lowest free number (accept(2)), so that as many are in use.
        if descriptor >= self._limit * (OWNERS_END if holder is None else TOKENS_END):
            return "the daemon has too many open files (LimitNOFILE of its service, ulimit -n)"
        if self._descriptors.take(holder, count):
            return None
        if holder is not None and self._descriptors.held(holder) + count > self._descriptors.one:
            return "the token's tunnels have as many clients as its share allows"
        return "tunnels have as many clients as the limit of open files allows (LimitNOFILE of its service, ulimit -n)"

    def give_back(self, holder: Holder, count: int) -> None:
        """Count ``count`` descriptors less."""
        self._descriptors.give_back(holder, count)

    def begin_dial(self, holder: Holder) -> bool:
        """Count one more thread that dials, if the share allows that; return whether it does."""
        return self._dials.take(holder)

    def end_dial(self, holder: Holder) -> None:
        """Count one less."""
        self._dials.give_back(holder)

    def await_dial(self, holder: Holder, serve: Serve) -> None:
        """Have ``serve`` called, once, by :meth:`serve_next` when a thread may dial for ``holder`` again."""
        self._waiting[serve] = holder

    def serve_next(self) -> None:
        """Call who waits longest of those for whom a thread may dial."""
        refused: set[Holder] = set()
        for serve, holder in self._waiting.items():
            if holder in refused:
                continue
            if self._dials.has_room(holder):
                del self._waiting[serve]
                serve()
                return
            refused.add(holder)
