"""How many logins are under way at a time, and how fast they begin: a thousand links must not begin in one moment.

sshd drops connections at random where ten have not logged in yet (``MaxStartups 10:30:100``), and firewalls and
gateways take a burst for an attack. So each server has a few places for logins, and each network and each gateway a
pace. Waiting for them takes nothing of the time that a login itself may take.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from connmgr.errors import ConnectTimeout
from connmgr.plugin import Deadline

AT_ONCE = 5
"""Logins to one server that are under way at a time. A busy sshd still counts some that have just ended: with eight,
four of a thousand were dropped where server and clients shared two cores."""

A_SECOND = 100.0
"""Logins into one network, or through one gateway, that begin in a second."""

BURST = 50
"""How many of them begin at once after a while without any."""

MAX_PACES = 1000


@dataclass
class _ServerPlaces:
    """The places of one server: how many are free, and how many threads have or await one."""

    places: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(AT_ONCE))
    users: int = 0


class LoginPlaces:
    """The places and paces of all servers. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: dict[Hashable, _ServerPlaces] = {}
        self._paces: dict[Hashable, float] = {}

    @contextmanager
    def taken(self, server: Hashable, way: Hashable, deadline: Deadline) -> Iterator[None]:
        """Wait for a place at ``server`` and for the pace of ``way`` to it, its network or its gateway; hold the place.

        :raises ConnectTimeout: there was none before ``deadline``; nothing was sent.
        """
        with self._lock:
            entry = self._servers.setdefault(server, _ServerPlaces())
            entry.users += 1
        try:
            if not entry.places.acquire(timeout=deadline.left()):
                raise self._late(deadline)
            try:
                if (pause := self._pause(way)) > 0:
                    time.sleep(min(pause, deadline.left()))
                    if deadline.passed:
                        raise self._late(deadline)
                yield
            finally:
                entry.places.release()
        finally:
            with self._lock:
                entry.users -= 1
                if not entry.users:
                    del self._servers[server]

    def _pause(self, way: Hashable) -> float:
        """Return the seconds after which the next login may begin on ``way``, and count that login."""
        with self._lock:
            now = time.monotonic()
            if len(self._paces) > MAX_PACES:
                self._paces = {place: at for place, at in self._paces.items() if at > now}
            # As if logins came at the pace all the time: the earliest time is BURST of them ago.
            at = max(self._paces.get(way, 0.0), now - BURST / A_SECOND) + 1 / A_SECOND
            self._paces[way] = at
            return at - now

    def _late(self, deadline: Deadline) -> ConnectTimeout:
        return ConnectTimeout(
            f"Too many logins there are under way: none of {AT_ONCE} places for logins was free within "
            f"{deadline.seconds:g} seconds."
        )


def network_of(address: str) -> str:
    """Return the network of an IP address: the first 24 bits of IPv4, 64 of IPv6."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return str(ipaddress.ip_network((ip, 24 if ip.version == 4 else 64), strict=False))
