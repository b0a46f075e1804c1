"""Describes the data of a connection type as JSON Schema, so that clients can offer its fields."""

from __future__ import annotations

from typing import Any

import marshmallow
from apispec import APISpec
from apispec.ext.marshmallow import MarshmallowPlugin

from connmgr.fields import FROM, EncryptedSchema, Reference, Secret
from connmgr.plugin import AnyConnectionType, SecretSource

OPENAPI_VERSION = "3.1.0"

_ELSEWHERE = {
    "type": "object",
    "properties": {
        FROM: {
            "type": "object",
            "properties": {"source": {"type": "string", "description": "The name of a secret source."}},
            "required": ["source"],
            "description": "Where the daemon fetches the secret when it logs in; other members are the source's.",
        }
    },
    "required": [FROM],
    "additionalProperties": False,
}


def json_schema(kind: AnyConnectionType) -> dict[str, Any]:
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


def source_schema(source: SecretSource) -> dict[str, Any]:
    """Return the JSON Schema of what a reference to ``source`` says beside its name."""
    schema = {key: value for key, value in _inline(source.schema()).items() if key != "additionalProperties"}
    return {**schema, "additionalProperties": False, "examples": [dict(source.example)]}


def describe_field(_converter: Any, field: marshmallow.fields.Field[Any], **_: Any) -> dict[str, Any]:
    """Return the facts about our fields that apispec's converter does not know; it calls this function."""
    null = [{"type": "null"}] if field.allow_none else []
    if isinstance(field, Secret):
        plain = {"type": "string", "description": "In plain.", "writeOnly": True}
        return {"oneOf": [plain, _inline(EncryptedSchema()), _ELSEWHERE, *null], "x-connmgr-secret": True}
    if isinstance(field, Reference):
        bare = {"type": "string", "format": "uuid"}
        schema = {
            "type": "object",
            "properties": {"storeId": bare},
            "required": ["storeId"],
            "additionalProperties": False,
        }
        return {"type": ["string", "object"], "oneOf": [bare, schema, *null], "x-connmgr-reference": True}
    if "type" not in field.metadata:
        return {}
    # A nested object in whose place a field takes something else, too; null is no less allowed by that.
    kinds = field.metadata["type"]
    return {"type": [*([kinds] if isinstance(kinds, str) else kinds), "null"] if null else kinds}


def _inline(schema: marshmallow.Schema) -> dict[str, Any]:
    plugin = MarshmallowPlugin(schema_name_resolver=lambda _: "")
    # The plugin gets its converter only from a specification.
    APISpec("types", "1", OPENAPI_VERSION, plugins=[plugin])
    converter: Any = plugin.converter
    converter.add_attribute_function(describe_field)
    described: dict[str, Any] = converter.schema2jsonschema(schema)
    return described
