"""The application factory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flask

from connmgr import __version__
from connmgr.api import (
    accounting,
    category,
    connection,
    daemon,
    description,
    docs,
    errors,
    fs,
    handshake,
    metrics,
    secret,
    shell,
    store,
    vault,
)
from connmgr.api.auth import authenticate
from connmgr.api.origin import Addresses
from connmgr.api.services import EXTENSION, Services
from connmgr.errors import ConnmgrError, Stopping
from connmgr.json_schema import OPENAPI_VERSION

REFUSAL = "connmgr.refusal"
"""Where the environment of a request holds its :class:`Refusal`, if it has one."""

GROUPS = tuple(part.group for part in (handshake, category, connection, shell, fs, secret, vault, daemon))


@dataclass(frozen=True)
class Refusal:
    """Why the server has not received a request whole; it is answered all the same, as far as its header was read."""

    error: ConnmgrError
    header_read: bool


class Application(flask.Flask):
    """Flask, for views that are all plain functions: it would look at each one again for every request."""

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return func

    def dispatch_request(self) -> Any:
        try:
            return super().dispatch_request()
        except Exception:
            raise
        except BaseException as error:
            # Flask would let go of it, unanswered: a plugin may raise anything, an exit included.
            raise RuntimeError(f"{type(error).__name__} from within a request") from error


def create_app(services: Services, addresses: Addresses) -> flask.Flask:
    """Return the WSGI application over ``services``, which answers requests that are sent to one of ``addresses``."""
    app = Application("connmgr.api", static_folder=None)
    app.config.update(
        API_TITLE="connmgr",
        API_VERSION=__version__,
        OPENAPI_VERSION=OPENAPI_VERSION,
        MAX_CONTENT_LENGTH=services.settings.max_body,
        PROVIDE_AUTOMATIC_OPTIONS=False,
    )
    app.url_map.merge_slashes = False
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.json.compact = True  # type: ignore[attr-defined]
    app.extensions[EXTENSION] = services
    app.register_error_handler(Exception, errors.answer)

    def admit() -> None:
        accounting.begin()
        request = flask.request._get_current_object()  # type: ignore[attr-defined]
        refusal: Refusal | None = request.environ.get(REFUSAL)
        if refusal is not None and not refusal.header_read:
            raise refusal.error
        addresses.check(request, browsers=not services.settings.no_auth)
        if services.stopping():
            raise Stopping("The daemon is stopping.")
        authenticate()
        if refusal is not None:
            raise request.routing_exception or refusal.error

    app.before_request(admit)
    app.after_request(_finish)
    api = description.Api(app, spec_kwargs=description.SPEC)
    description.teach(api)
    for group in GROUPS:
        api.register_blueprint(group)
    app.register_blueprint(store.group_of(connection.group))
    app.register_blueprint(metrics.page())
    app.register_blueprint(docs.pages(api.spec))
    return app


def _finish(response: flask.Response) -> flask.Response:
    """Set the headers that every response has, and account for the request."""
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return accounting.finish(response)
