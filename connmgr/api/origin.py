"""Keeps web pages out: a browser can reach the daemon, but says so in headers that scripts cannot forge."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

import flask

from connmgr.errors import ForbiddenOrigin, InvalidRequest, MisdirectedRequest

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_HTTP_PORT = 80


class Addresses:
    """The names and addresses that requests may be sent to.

    They are loopback's, ``bound`` (the address listened on, if it is one) and ``allowed``, each with ``port`` unless
    it names another one.
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

    def check(self, request: flask.Request, *, browsers: bool) -> None:
        """Refuse what did not come straight from a program of this machine, or from a page of our own.

        A foreign page that had its own name resolve to our address shows in ``Host``; any other one in ``Origin`` or
        ``Sec-Fetch-Site``. Without ``browsers`` a POST or a WebSocket from any page is refused, our own
        included.
        :raises InvalidRequest: there is not exactly one Host header.
        :raises MisdirectedRequest: it names somebody else.
        :raises ForbiddenOrigin: another page has sent the request.
        """
        host = request.environ.get("HTTP_HOST", "")
        if not host or "," in host:
            raise InvalidRequest("The request must have exactly one Host header.")
        target = request.environ.get("REQUEST_URI", "/")
        absolute = "" if target.startswith("/") else urlsplit(target).netloc
        if not self.includes(host) or (absolute and not self.includes(absolute)):
            raise MisdirectedRequest(
                "The Host header does not name this daemon; names beyond localhost are set with allowed-hosts."
            )
        origin = request.environ.get("HTTP_ORIGIN")
        site = request.environ.get("HTTP_SEC_FETCH_SITE")
        if origin is not None and not (origin.startswith("http://") and self.includes(origin[len("http://") :])):
            raise ForbiddenOrigin("Requests from web pages are refused.")
        if site is not None and site not in {"same-origin", "none"}:
            raise ForbiddenOrigin("Requests from web pages are refused.")
        changes = request.method == "POST" or "HTTP_UPGRADE" in request.environ
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
