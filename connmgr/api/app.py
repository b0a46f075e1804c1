"""The application factory."""

from __future__ import annotations

import logging
import secrets
import time

import flask

from connmgr import __version__
from connmgr.api import (
    category,
    connection,
    daemon,
    description,
    docs,
    errors,
    fs,
    handshake,
    secret,
    shell,
    vault,
)
from connmgr.api.auth import authenticate
from connmgr.api.origin import Addresses
from connmgr.api.services import EXTENSION, Services
from connmgr.errors import Stopping

logger = logging.getLogger("connmgr.request")

GROUPS = tuple(part.group for part in (handshake, category, connection, shell, fs, secret, vault, daemon))


def create_app(services: Services, addresses: Addresses) -> flask.Flask:
    """Return the WSGI application over ``services``, which answers requests that are sent to one of ``addresses``."""
    app = flask.Flask("connmgr.api", static_folder=None)
    app.config.update(
        API_TITLE="connmgr",
        API_VERSION=__version__,
        OPENAPI_VERSION=description.OPENAPI_VERSION,
        MAX_CONTENT_LENGTH=services.settings.max_body,
        PROVIDE_AUTOMATIC_OPTIONS=False,
    )
    app.url_map.merge_slashes = False
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.json.compact = True  # type: ignore[attr-defined]
    app.extensions[EXTENSION] = services
    app.register_error_handler(Exception, errors.answer)

    def admit() -> None:
        flask.g.began = time.perf_counter()
        addresses.check(flask.request, browsers=not services.settings.no_auth)
        if services.stopping():
            raise Stopping("The daemon is stopping.")
        authenticate()

    app.before_request(admit)
    app.after_request(_finish)
    api = description.Api(app, spec_kwargs=description.SPEC)
    description.teach(api)
    for group in GROUPS:
        api.register_blueprint(group)
    app.register_blueprint(docs.pages(api.spec))
    return app


def _finish(response: flask.Response) -> flask.Response:
    """Set the headers that every response has, and log the request: never its body, nor its credentials."""
    identifier = secrets.token_hex(4)
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["X-Request-Id"] = identifier
    request = flask.request
    milliseconds = (time.perf_counter() - flask.g.began) * 1000
    logger.info("%s %r %d %.1f ms %s", request.method, request.path, response.status_code, milliseconds, identifier)
    return response
