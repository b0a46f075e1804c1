"""Describes the API as an OpenAPI document, ``/openapi.json``, from the declarations of its endpoints."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import marshmallow
from apispec import APISpec
from apispec.ext.marshmallow import MarshmallowPlugin
from marshmallow import fields

from connmgr import __version__, errors
from connmgr.api.answer import LINES
from connmgr.api.body import Nothing
from connmgr.api.endpoint import Endpoint
from connmgr.api.errors import body_of
from connmgr.api.group import Group
from connmgr.api.stream_endpoint import StreamEndpoint
from connmgr.errors import ConnmgrError
from connmgr.json_schema import OPENAPI_VERSION, describe_field

INTRODUCTION = (
    "A local daemon that manages connections to machines. Every request is a POST of a JSON object. `/handshake` gives "
    "the token that all other requests carry. A request at fault gets 400, a failed operation 500, each with a `code` "
    "that programs can rely on."
)

_IN_PATH = re.compile(r"<(\w+)>")
_TOKEN = {"type": "http", "scheme": "bearer", "description": "The `sessionToken` that `/handshake` returns."}

ALWAYS: tuple[type[ConnmgrError], ...] = (
    errors.InvalidRequest,
    errors.ForbiddenOrigin,
    errors.MisdirectedRequest,
    errors.HeadersTooLarge,
    errors.InternalError,
    errors.VaultUnavailable,
    errors.Stopping,
)
"""Errors that any request may get."""

WITH_BODY: tuple[type[ConnmgrError], ...] = (errors.BodyTooLarge, errors.UnsupportedMediaType)
NEEDS_TOKEN: tuple[type[ConnmgrError], ...] = (
    errors.NotAuthenticated,
    errors.InvalidToken,
    errors.TokenExpired,
    errors.TokenRevoked,
    errors.ScopeDenied,
    errors.PolicyDenied,
    errors.QuotaExceeded,
)


class Error(marshmallow.Schema):
    """The request is at fault, or the daemon cannot answer it now."""

    message = fields.String(required=True, metadata={"description": "What is wrong, for a person."})
    code = fields.String(required=True, metadata={"description": "What is wrong, for a program; it never changes."})


class Failure(Error):
    """What went wrong in an operation."""

    localizedMessage = fields.String(required=True)
    cause = fields.Dict(required=True)
    stackTrace = fields.List(fields.String(), required=True)
    suppressed = fields.List(fields.Raw(), required=True)


class OperationFailed(marshmallow.Schema):
    """The operation could not be carried out."""

    error = fields.Nested(Failure, required=True)


def describe(groups: Iterable[Group]) -> dict[str, Any]:
    """Return the OpenAPI document of all published endpoints in ``groups``."""
    plugin = MarshmallowPlugin()
    spec = APISpec(
        "connmgr",
        __version__,
        OPENAPI_VERSION,
        plugins=[plugin],
        info={"description": INTRODUCTION},
        security=[{"token": []}],
    )
    converter: Any = plugin.converter
    converter.add_attribute_function(describe_field)
    spec.components.security_scheme("token", _TOKEN)
    for group in groups:
        endpoints = [endpoint for endpoint in group.endpoints if endpoint.described]
        if endpoints:
            spec.tag({"name": group.name, "description": group.description})
        for endpoint in endpoints:
            operations = {method.lower(): _operation(endpoint, method, group.name) for method in endpoint.methods}
            spec.path(_IN_PATH.sub(r"{\1}", endpoint.path), operations=operations)
    return spec.to_dict()


def _operation(endpoint: Endpoint, method: str, tag: str) -> dict[str, Any]:
    summary, _, text = (inspect.getdoc(endpoint.view) or "").partition("\n")
    described: dict[str, Any] = {"summary": summary, "description": text.strip(), "tags": [tag]}
    if endpoint.raw_body:
        described["requestBody"] = {**_bytes(endpoint.raw_body), "required": True}
        if endpoint.request:
            described["parameters"] = [{"in": "query", "schema": endpoint.request}]
    elif isinstance(endpoint, StreamEndpoint) and endpoint.first_message:
        described["requestBody"] = {
            "description": "The first message of the WebSocket.",
            "content": _json(endpoint.request, endpoint.example),
        }
    elif isinstance(endpoint, StreamEndpoint) and endpoint.request:
        described["parameters"] = _parameters(endpoint.path, endpoint.request)
    elif method == "POST":
        content = _json(endpoint.request or Nothing(), endpoint.example)
        described["requestBody"] = {"content": content, "required": endpoint.request is not None}
    if endpoint.public:
        described["security"] = []
    described["responses"] = {**_success(endpoint, summary), **_failures(endpoint, method)}
    return {name: value for name, value in described.items() if value != ""}


def _parameters(path: str, schema: marshmallow.Schema) -> list[dict[str, Any]]:
    """Return the parameters that ``schema`` loads, those in the path first."""
    in_path = _IN_PATH.findall(path)
    found: list[dict[str, Any]] = [
        {
            "in": "path",
            "name": name,
            "required": True,
            "description": schema.fields[name].metadata["description"],
            "schema": {"type": "string", "format": "uuid"},
        }
        for name in in_path
    ]
    return [*found, {"in": "query", "schema": type(schema)(exclude=in_path)}]


def _success(endpoint: Endpoint, summary: str) -> dict[str, Any]:
    if isinstance(endpoint, StreamEndpoint):
        return {"101": {"description": endpoint.frames}}
    if endpoint.raw_answer:
        return {"200": _bytes(endpoint.raw_answer, endpoint.raw_type)}
    content = _json(endpoint.response, endpoint.answer) if endpoint.response else {}
    if endpoint.lines:
        content[LINES] = {"schema": endpoint.lines}
    return {"200": {"description": summary, **({"content": content} if content else {})}}


def _failures(endpoint: Endpoint, method: str) -> dict[str, Any]:
    """Return the error codes of each status, in the order of their declaration."""
    by_status: dict[int, list[type[ConnmgrError]]] = defaultdict(list)
    common = (*ALWAYS, *(WITH_BODY if method == "POST" else ()), *(() if endpoint.public else NEEDS_TOKEN))
    if not (endpoint.public or endpoint.reads):
        common += (errors.AuditUnavailable,)
    kinds = (*common, *endpoint.raises, *((errors.Busy,) if endpoint.waits else ()))
    for kind in dict.fromkeys(kinds):
        by_status[kind.status].append(kind)
    return {str(status): _failure(status, kinds) for status, kinds in sorted(by_status.items())}


def _failure(status: int, kinds: list[type[ConnmgrError]]) -> dict[str, Any]:
    codes = ", ".join(f"`{code}`" for code in dict.fromkeys(kind.code for kind in kinds))
    schema = OperationFailed if status == errors.OperationError.status else Error
    return {"description": codes, "content": _json(schema(), body_of(_specimen(kinds[-1])))}


def _specimen(kind: type[ConnmgrError]) -> ConnmgrError:
    error = ConnmgrError((inspect.getdoc(kind) or "").partition("\n")[0])
    error.code, error.status = kind.code, kind.status  # type: ignore[misc]
    return error


def _json(schema: marshmallow.Schema | None, example: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"application/json": {"schema": schema, **({"example": example} if example is not None else {})}}


def _bytes(description: str, kind: str = "application/octet-stream") -> dict[str, Any]:
    schema = {"type": "string", "format": "binary"}
    return {"description": description, "content": {kind: {"schema": schema}}}
