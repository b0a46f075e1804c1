"""The WSGI application: which requests it admits at all, and all its endpoints.

Requests of foreign web pages are refused by headers that browsers send and scripts in pages cannot forge.
"""

from __future__ import annotations

import copy
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import flask
import marshmallow
from werkzeug.routing import Rule

from connmgr.api import (
    apply,
    approval,
    archive,
    audit,
    broadcast,
    ca,
    category,
    command,
    connection,
    daemon,
    docs,
    download,
    errors,
    event,
    fact,
    fs,
    handshake,
    hostkey,
    inventory,
    job,
    metrics,
    multiplex,
    page,
    pipe,
    record,
    recording,
    run,
    schedule,
    secret,
    shell,
    terminal,
    token,
    tunnel,
    undo,
    vault,
    web,
)
from connmgr.api.body import REFUSAL, Refusal
from connmgr.api.context import CALLER, open_context
from connmgr.api.endpoint import Endpoint, Group
from connmgr.api.services import EXTENSION, Services
from connmgr.api.stream_endpoint import StreamEndpoint
from connmgr.contract.common import SECOND_NAMES
from connmgr.errors import ForbiddenOrigin, InvalidRequest, MisdirectedRequest
from connmgr.paths import is_loopback

GROUPS = (
    handshake.group,
    category.group,
    connection.group,
    apply.group,
    shell.group,
    broadcast.group,
    fact.group,
    pipe.group,
    terminal.group,
    recording.group,
    tunnel.group,
    multiplex.group,
    job.group,
    job.orphans_group,
    run.group,
    schedule.group,
    inventory.group,
    command.group,
    fs.group,
    archive.group,
    download.group,
    undo.group,
    secret.group,
    hostkey.group,
    ca.group,
    token.group,
    approval.group,
    vault.group,
    audit.group,
    event.group,
    daemon.group,
    metrics.group,
    web.group,
)

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_HTTP_PORT = 80


class MatchedRule(Rule):
    """A rule that finds the view of a request, and builds no URL of a view, which nobody asks for.

    Werkzeug compiles two programs for each rule that build its URLs: half of the time in which the daemon starts.
    """

    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        return _no_url


def _no_url(*_: object, **__: object) -> tuple[str, str]:
    raise NotImplementedError("Rules of connmgr match requests; they build no URLs.")


class Application(flask.Flask):
    """Flask for plain functions as views, without its check of every view on every request."""

    url_rule_class = MatchedRule

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return func


def create_app(services: Services, addresses: Addresses) -> flask.Flask:
    """Return the WSGI application over ``services``, which answers requests that are sent to one of ``addresses``."""
    app = Application("connmgr.api", static_folder=None)
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    app.url_map.merge_slashes = False
    app.extensions[EXTENSION] = services
    app.register_error_handler(Exception, errors.answer)

    def admit() -> None:
        environ = open_context().environ
        refusal: Refusal | None = environ.get(REFUSAL)
        if refusal is not None and not refusal.header_read:
            # Not even the header was read: no endpoint is known that could answer.
            raise refusal.error
        if CALLER not in environ:
            addresses.check(environ, browsers=not services.settings.no_auth)
        services.require_running()

    app.before_request(admit)
    app.after_request(_finish)
    for endpoint in endpoints():
        app.add_url_rule(endpoint.path, endpoint.path, endpoint, methods=endpoint.methods)
        if isinstance(endpoint, StreamEndpoint):
            # Flask matches requests for a WebSocket with such rules only.
            app.add_url_rule(endpoint.path, endpoint.path, methods=("GET",), websocket=True)
    return app


@cache
def endpoints() -> tuple[Endpoint, ...]:
    """Return all endpoints, those of the second vocabulary and of the pages included; they are made once."""
    groups = (*GROUPS, _second_vocabulary(connection.group), docs.group_of(GROUPS), page.group)
    return tuple(endpoint for group in groups for endpoint in group.endpoints)


def _second_vocabulary(connections: Group) -> Group:
    """Return the endpoints of the group ``/connection`` as ``/store``, with ``store``, ``stores`` and ``storeFilter``.

    Newer clients of the XPipe API use these names; the views are the same. The published description leaves them out,
    because it would only say everything twice.
    """
    group = Group("store", connections.description)
    for endpoint in connections.endpoints:
        second = replace(
            endpoint,
            path=endpoint.path.replace(f"/{connections.name}/", "/store/", 1),
            described=False,
            renames=SECOND_NAMES,
            request=_renamed(endpoint.request),
            response=_renamed(endpoint.response),
        )
        group.endpoints.append(second)
    return group


def _renamed(schema: marshmallow.Schema | None) -> marshmallow.Schema | None:
    """Return ``schema`` with the second names of its fields in JSON; loaded values have the first names."""
    if schema is None:
        return None
    changed: dict[str, Any] = {}
    for name, field in schema.declared_fields.items():
        if field.data_key in SECOND_NAMES:
            changed[name] = copy.deepcopy(field)
            changed[name].data_key = SECOND_NAMES[field.data_key]
    kind: type[marshmallow.Schema] = type(
        f"Store{type(schema).__name__.removeprefix('Connection')}", (type(schema),), changed
    )
    return kind()


def _finish(response: flask.Response) -> flask.Response:
    """Set the headers that every response has, and account for the request."""
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return record.finish(response)


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
            match = _HOST.fullmatch(entry.lower())
            if match:
                self._names.add((match["name"], int(match["port"] or port)))

    def includes(self, authority: str) -> bool:
        """Whether ``authority``, a ``Host`` header's value, is one of them."""
        if authority in self._usual:
            return True
        match = _HOST.fullmatch(authority.lower())
        if match is None:
            return False
        port = int(match["port"] or _HTTP_PORT)
        return (match["name"], port) in self._names or (port == self._port and is_loopback(match["name"].strip("[]")))

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
        # A browser sends none where the user has typed the address or followed a bookmark.
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
