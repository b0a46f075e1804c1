"""How schemas are described: in ``/openapi.json``, and as JSON Schema for connection types."""

from __future__ import annotations

from typing import Any

import flask_smorest
import marshmallow
from apispec import APISpec
from apispec.ext.marshmallow import MarshmallowPlugin

from connmgr.api.group import Error
from connmgr.fields import EncryptedSchema, Reference, Secret
from connmgr.plugin import ConnectionType

OPENAPI_VERSION = "3.1.0"

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
    api.ma_plugin.converter.add_attribute_function(_describe_field)
    api.spec.components.security_scheme("token", _TOKEN)


def json_schema(kind: ConnectionType) -> dict[str, Any]:
    """Return the JSON Schema of the ``data`` of a connection of type ``kind``, its ``type`` included."""
    schema = _inline(kind.schema())
    properties = {"type": {"const": kind.name}, **schema.pop("properties", {})}
    return {
        "type": "object",
        "properties": properties,
        "required": ["type", *schema.pop("required", ())],
        "additionalProperties": False,
        "examples": [{"type": kind.name, **kind.example}],
        **{key: value for key, value in schema.items() if key not in {"type", "additionalProperties"}},
    }


def _describe_field(_converter: Any, field: marshmallow.fields.Field[Any], **_: Any) -> dict[str, Any]:
    null = [{"type": "null"}] if field.allow_none else []
    if isinstance(field, Secret):
        plain = {"type": "string", "description": "In plain.", "writeOnly": True}
        return {"oneOf": [plain, _inline(EncryptedSchema()), *null], "x-connmgr-secret": True}
    if isinstance(field, Reference):
        bare = {"type": "string", "format": "uuid"}
        named = {
            "type": "object",
            "properties": {"storeId": bare},
            "required": ["storeId"],
            "additionalProperties": False,
        }
        return {"type": ["string", "object"], "oneOf": [bare, named, *null], "x-connmgr-reference": True}
    return {}


def _inline(schema: marshmallow.Schema) -> dict[str, Any]:
    plugin = MarshmallowPlugin(schema_name_resolver=lambda _: "")
    # Only a specification gives the plugin its converter.
    APISpec("types", "1", OPENAPI_VERSION, plugins=[plugin])
    converter: Any = plugin.converter
    converter.add_attribute_function(_describe_field)
    described: dict[str, Any] = converter.schema2jsonschema(schema)
    return described
