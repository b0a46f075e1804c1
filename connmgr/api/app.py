"""The application factory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import flask

from connmgr.api import (
    apply,
    approval,
    archive,
    audit,
    broadcast,
    category,
    command,
    connection,
    daemon,
    docs,
    errors,
    fs,
    handshake,
    hostkey,
    job,
    metrics,
    pipe,
    record,
    second_vocabulary,
    secret,
    shell,
    terminal,
    token,
    tunnel,
    vault,
)
from connmgr.api.account import begin
from connmgr.api.body import REFUSAL, Refusal
from connmgr.api.endpoint import Endpoint
from connmgr.api.origin import Addresses
from connmgr.api.services import EXTENSION, Services
from connmgr.api.stream_endpoint import StreamEndpoint
from connmgr.errors import Stopping

GROUPS = (
    handshake.group,
    category.group,
    connection.group,
    apply.group,
    shell.group,
    broadcast.group,
    pipe.group,
    terminal.group,
    tunnel.group,
    job.group,
    job.orphans_group,
    command.group,
    fs.group,
    archive.group,
    secret.group,
    hostkey.group,
    token.group,
    approval.group,
    vault.group,
    audit.group,
    daemon.group,
    metrics.group,
)


class Application(flask.Flask):
    """Flask for plain functions as views, without its check of every view on every request."""

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
        environ = begin().environ
        refusal: Refusal | None = environ.get(REFUSAL)
        if refusal is not None and not refusal.header_read:
            raise refusal.error
        addresses.check(environ, browsers=not services.settings.no_auth)
        if services.stopping():
            raise Stopping("The daemon is stopping.")

    app.before_request(admit)
    app.after_request(_finish)
    for endpoint in endpoints():
        app.add_url_rule(endpoint.path, endpoint.path, endpoint, methods=endpoint.methods)
        if isinstance(endpoint, StreamEndpoint):
            # Flask matches requests for a WebSocket with such rules only.
            app.add_url_rule(endpoint.path, endpoint.path, methods=endpoint.methods, websocket=True)
    return app


def endpoints() -> Iterator[Endpoint]:
    """Yield all endpoints, those of the second vocabulary and of the pages included."""
    for group in (*GROUPS, second_vocabulary.group_of(connection.group), docs.group_of(GROUPS)):
        yield from group.endpoints


def _finish(response: flask.Response) -> flask.Response:
    """Set the headers that every response has, and account for the request."""
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return record.finish(response)
