"""The API's description: the OpenAPI document, and the same as a page for people.

The page's script searches the page, and sends what its reader tries with the token of the page at ``/``; it loads
nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import flask
import marshmallow
from apispec import APISpec
from apispec.ext.marshmallow import MarshmallowPlugin
from markupsafe import Markup, escape
from marshmallow import fields

from connmgr import __version__, errors
from connmgr.api.answer import LINES
from connmgr.api.body import Nothing
from connmgr.api.endpoint import PUBLIC_FILES, Endpoint, Group
from connmgr.api.errors import body_of
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
NEEDS_CALLER: tuple[type[ConnmgrError], ...] = (
    errors.InvalidToken,
    errors.TokenExpired,
    errors.TokenRevoked,
    errors.ScopeDenied,
    errors.PolicyDenied,
    errors.StepUpRequired,
    errors.QuotaExceeded,
)
ASKED_ABOUT: tuple[type[ConnmgrError], ...] = (errors.ApprovalRequired, errors.ApprovalDenied)

_CODE = re.compile(r"`([^`]+)`")
_OWN = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)
_HANDSHAKE = """\
umask 077
curl -sS {url}/handshake -H 'Content-Type: application/json' --data-binary @- <<END |
{{"auth": {{"type": "local", "authFileContent": "$(cat "{auth_file}")"}}, "client": {{"type": "api", "name": "me"}}}}
END
sed 's/.*"sessionToken": *"\\([^"]*\\)".*/Authorization: Bearer \\1/' >headers"""
_AUTH_FILE = "${CONNMGR_AUTH_FILE:-${XDG_RUNTIME_DIR:-$HOME/.local/state}/connmgr/auth}"
_URL = "http://ADDRESS-OF-THE-DAEMON"
"""Stands in the page for the address that a request for it names."""


def group_of(groups: Sequence[Group]) -> Group:
    """Return the endpoints that describe ``groups``: ``/openapi.json``, and the page at ``/docs``."""
    pages = Group("docs", "The description of the API.", prefix="")

    @cache
    def described() -> str:
        # At the first request for it: it takes a quarter of a second, which the start of the daemon is spared.
        return json.dumps(describe(groups), indent=2)

    @cache
    def rendered() -> tuple[str, str]:
        handshake = _HANDSHAKE.format(url=_URL, auth_file=_AUTH_FILE)
        html = flask.render_template("docs.html", **view(json.loads(described())), rich=rich, handshake=handshake)
        own = "".join(f" {kind}-src 'sha256-{_digest(text)}';" for kind, text in _OWN.findall(html))
        return html, f"default-src 'none';{own} connect-src 'self'; base-uri 'none'; form-action 'none'; " + (
            "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
        )

    @pages.endpoint("/openapi.json", action="docs.read", **PUBLIC_FILES)
    def openapi() -> flask.Response:
        return flask.Response(described(), mimetype="application/json")

    @pages.endpoint("/docs", action="docs.read", **PUBLIC_FILES)
    def page() -> flask.Response:
        html, policy = rendered()
        # The Host header is one of the daemon's own: others are refused before.
        html = html.replace(_URL, str(escape(flask.request.host_url.rstrip("/"))))
        headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"}
        return flask.Response(html, mimetype="text/html", headers=headers)

    return pages


class Error(marshmallow.Schema):
    """The request is at fault, or the daemon cannot answer it now; some codes have further members."""

    class Meta:
        unknown = marshmallow.INCLUDE

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
            operations = {method.lower(): _operation_of(endpoint, method, group.name) for method in endpoint.methods}
            spec.path(_IN_PATH.sub(r"{\1}", endpoint.path), operations=operations)
    return spec.to_dict()


def _operation_of(endpoint: Endpoint, method: str, tag: str) -> dict[str, Any]:
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
    elif method == "GET" and endpoint.request:
        described["parameters"] = [{"in": "query", "schema": endpoint.request}]
    elif method == "POST":
        content = _json(endpoint.request or Nothing(), endpoint.example)
        described["requestBody"] = {"content": content, "required": endpoint.request is not None}
    if endpoint.public or endpoint.ticketed:
        described["security"] = []
    described["responses"] = {**_success(endpoint, method, summary), **_failures(endpoint, method)}
    return {name: value for name, value in described.items() if value != ""}


def _parameters(path: str, schema: marshmallow.Schema) -> list[dict[str, Any]]:
    """Return the parameters that ``schema`` loads, those in the path first."""
    in_path = _IN_PATH.findall(path)
    parameters: list[dict[str, Any]] = [
        {
            "in": "path",
            "name": name,
            "required": True,
            "description": schema.fields[name].metadata["description"],
            "schema": {"type": "string", "format": "uuid"},
        }
        for name in in_path
    ]
    return [*parameters, {"in": "query", "schema": type(schema)(exclude=in_path)}]


def _success(endpoint: Endpoint, method: str, summary: str) -> dict[str, Any]:
    if isinstance(endpoint, StreamEndpoint) and not (endpoint.lines and method == "POST"):
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
    common = (*ALWAYS, *(WITH_BODY if method == "POST" else ()))
    if not (endpoint.public or endpoint.ticketed):
        common += (errors.NotAuthenticated,)
    if not endpoint.public:
        common += NEEDS_CALLER
    if endpoint.action.has_rules and not endpoint.raw_body:
        # Nobody can approve a body that is used as it arrives.
        common += ASKED_ABOUT
    if not (endpoint.public or endpoint.reads):
        common += (errors.AuditUnavailable,)
    kinds = (*common, *endpoint.raises, *((errors.Busy,) if endpoint.waits or endpoint.has_large_answer else ()))
    for kind in dict.fromkeys(kinds):
        if method == "POST" and kind in (errors.UpgradeRequired, errors.BadFrame):
            # Of the WebSocket at the same path.
            continue
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


def view(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return an OpenAPI ``description`` as templates show it: its ``info`` and its ``groups`` of operations."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, operations in description["paths"].items():
        methods = [method for method in ("get", "post") if method in operations]
        operation = operations[methods[-1]]
        shown = _operation(path, methods, operation, description["components"]["schemas"])
        shown["methods"] = " ".join(method.upper() for method in methods)
        groups.setdefault(operation["tags"][0], []).append(shown)
    texts = {tag["name"]: tag.get("description", "") for tag in description["tags"]}
    return {
        "info": description["info"],
        "groups": [(name, texts.get(name, ""), operations) for name, operations in groups.items()],
    }


def _operation(
    path: str, methods: Sequence[str], operation: Mapping[str, Any], schemas: Mapping[str, Any]
) -> dict[str, Any]:
    request = _content(operation.get("requestBody"))
    responses = dict(operation["responses"])
    success = responses.get("200") or responses["101"]
    frames = success["description"] if "101" in responses else ""
    errors = [(status, answer["description"]) for status, answer in sorted(responses.items()) if answer is not success]
    response = _content(success)
    return {
        "path": path,
        "anchor": path.strip("/").replace("/", "-"),
        "summary": operation.get("summary", ""),
        "paragraphs": operation.get("description", "").split("\n\n"),
        "request_raw": _raw(operation.get("requestBody")),
        "response_raw": _raw(success) or frames,
        "tries": "post" in methods and not _raw(operation.get("requestBody")) and not _raw(success),
        "query": [_parameter(each) for each in operation.get("parameters", ())],
        "request": list(_rows(request.get("schema", {}), schemas)),
        "request_example": _pretty(request.get("example")),
        "curl": _curl(path, request.get("example"), operation),
        "response": list(_rows(response.get("schema", {}), schemas)),
        "response_example": _pretty(response.get("example")),
        "lines": list(_rows(_content(success, LINES).get("schema", {}), schemas)),
        "errors": errors,
    }


def _curl(path: str, example: object, operation: Mapping[str, Any]) -> str:
    """Return a shell command that sends the example of a request."""
    command = f"curl -sS {_URL}{path} -H @headers"
    if _raw(operation.get("requestBody")):
        return f"{command} -H 'Content-Type: application/octet-stream' --data-binary @FILE"
    if example is None:
        return f"{command} -X POST"
    # The quoted end marker keeps the shell from expanding the text.
    return f"{command} -H 'Content-Type: application/json' --data-binary @- <<'END'\n{_pretty(example)}\nEND"


def _raw(body: Mapping[str, Any] | None) -> str:
    """Return the description of a body of bytes; empty for JSON."""
    raw = body is not None and any("format" in each["schema"] for each in body.get("content", {}).values())
    return str(body["description"]) if body is not None and raw else ""


def _content(body: Mapping[str, Any] | None, kind: str = "application/json") -> Mapping[str, Any]:
    content: Mapping[str, Any] = (body or {}).get("content", {}).get(kind, {})
    return content


def _rows(schema: Mapping[str, Any], schemas: Mapping[str, Any], path: str = "") -> Iterator[tuple[Any, ...]]:
    """Yield each field of ``schema``, nested ones too, as ``(path, type, required, description)``."""
    schema = _resolved(schema, schemas)
    for name, field in schema.get("properties", {}).items():
        inner = _resolved(field, schemas)
        item = _resolved(inner.get("items", {}), schemas)
        here = f"{path}{name}"
        yield here, _type(inner, item), name in schema.get("required", ()), field.get("description", "")
        yield from _rows(inner, schemas, f"{here}.")
        yield from _rows(item, schemas, f"{here}[].")


def _parameter(parameter: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a member of the query in the form of :func:`_rows`."""
    return (
        parameter["name"],
        _type(parameter["schema"], {}),
        parameter.get("required", False),
        parameter.get("description", ""),
    )


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref") or next((part["$ref"] for part in schema.get("allOf", ()) if "$ref" in part), None)
    target: Mapping[str, Any] = schemas[reference.rpartition("/")[2]] if reference else schema
    return target


def _type(schema: Mapping[str, Any], item: Mapping[str, Any]) -> str:
    kind = schema.get("type", "any")
    array = f"array of {item.get('format', item.get('type', 'object'))}" if item else "array"
    name = " or ".join(array if each == "array" else each for each in (kind if isinstance(kind, list) else [kind]))
    if "enum" in schema:
        return " or ".join(json.dumps(value) for value in schema["enum"])
    return str(schema.get("format", name)) if name == "string" else name


def _pretty(example: object) -> str:
    return json.dumps(example, indent=2, ensure_ascii=False) if example is not None else ""


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def rich(text: str) -> Markup:
    """Return ``text`` as HTML, with text between backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped before
