"""Refuses requests of foreign web pages, by headers that browsers send and scripts cannot forge."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from connmgr.errors import ForbiddenOrigin, InvalidRequest, MisdirectedRequest

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_HTTP_PORT = 80


class Addresses:
    """The names and addresses to which requests may be sent.

    They are loopback's, ``bound`` (the address listened on, if any) and ``allowed``, each with ``port`` unless it names
    another port.
    """

    def __init__(self, port: int, bound: str, allowed: Iterable[str]) -> None:
        self._port = port
        self._usual = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._names: set[tuple[str, int]] = {("localhost", port)}
        if not _is_wildcard(bound):
            self._names.add((f"[{bound}]" if ":" in bound else bound.lower(), port))
        for entry in allowed:
            found = _HOST.fullmatch(entry.lower())
            if found:
                self._names.add((found["name"], int(found["port"] or port)))

    def includes(self, authority: str) -> bool:
        """Whether ``authority``, a ``Host`` header's value, is one of them."""
        if authority in self._usual:
            return True
        found = _HOST.fullmatch(authority.lower())
        if found is None:
            return False
        port = int(found["port"] or _HTTP_PORT)
        return (found["name"], port) in self._names or (port == self._port and _is_loopback(found["name"]))

    def check(self, environ: Mapping[str, Any], *, browsers: bool) -> None:
        """Refuse a request that comes neither from a program nor from one of our own pages.

        ``Host`` reveals a page whose name was made to resolve to our address (DNS rebinding), ``Origin`` or
        ``Sec-Fetch-Site`` any other page. Without ``browsers`` a POST or a WebSocket from our own pages is refused too.

        :raises InvalidRequest: there is not exactly one Host header.
        :raises MisdirectedRequest: it names another host.
        :raises ForbiddenOrigin: another page has sent the request.
        """
        host = environ.get("HTTP_HOST", "")
        if not host or "," in host:
            raise InvalidRequest("The request must have exactly one Host header.")
        target = environ.get("REQUEST_URI", "/")
        absolute = "" if target.startswith("/") else urlsplit(target).netloc
        if not self.includes(host) or (absolute and not self.includes(absolute)):
            raise MisdirectedRequest(
                "The Host header does not name this daemon; names beyond localhost are set with allowed-hosts."
            )
        origin = environ.get("HTTP_ORIGIN")
        site = environ.get("HTTP_SEC_FETCH_SITE")
        if origin is not None and not (origin.startswith("http://") and self.includes(origin[len("http://") :])):
            raise ForbiddenOrigin("Requests from web pages are refused.")
        if site is not None and site not in {"same-origin", "none"}:
            raise ForbiddenOrigin("Requests from web pages are refused.")
        changes = environ["REQUEST_METHOD"] == "POST" or "HTTP_UPGRADE" in environ
        if not browsers and changes and (origin is not None or site is not None):
            raise ForbiddenOrigin("Requests from browsers are refused while authentication is switched off.")


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
