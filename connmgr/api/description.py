"""How the API is described, in ``/openapi.json``."""

from __future__ import annotations

import flask_smorest

from connmgr.api.group import Error
from connmgr.json_schema import describe_field

INTRODUCTION = (
    "A local daemon that manages connections to machines. Every request is a POST of a JSON object; `/handshake` gives "
    "the token that all others carry. A request at fault is answered 400 and an operation that failed 500, both with a "
    "`code` that programs can rely on."
)

SPEC = {
    "info": {"description": INTRODUCTION},
    "security": [{"token": []}],
}

_TOKEN = {"type": "http", "scheme": "bearer", "description": "The `sessionToken` that `/handshake` returns."}


class Api(flask_smorest.Api):  # type: ignore[misc]
    """flask-smorest's registry of endpoints, without its own error answers and documentation pages."""

    DEFAULT_ERROR_RESPONSE_NAME = None
    ERROR_SCHEMA = Error

    def _register_error_handlers(self) -> None:
        """Leave errors to :mod:`connmgr.api.errors`."""


def teach(api: Api) -> None:
    """Tell the description of ``api`` about our own fields and the bearer token."""
    api.ma_plugin.converter.add_attribute_function(describe_field)
    api.spec.components.security_scheme("token", _TOKEN)
