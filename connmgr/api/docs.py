"""The API's description as a page for people; its script only searches the page, and it loads nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import flask
from markupsafe import Markup, escape

from connmgr.api.answer import LINES
from connmgr.api.description import describe
from connmgr.api.group import Group

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
    """Return the endpoints that describe ``groups``: ``/openapi.json``, and the page at ``/`` and ``/docs``."""
    pages = Group("docs", "The description of the API.", prefix="")

    @cache
    def described() -> str:
        return json.dumps(describe(groups), indent=2)

    @cache
    def rendered() -> tuple[str, str]:
        handshake = _HANDSHAKE.format(url=_URL, auth_file=_AUTH_FILE)
        html = flask.render_template("docs.html", **view(json.loads(described())), rich=rich, handshake=handshake)
        own = "".join(f" {kind}-src 'sha256-{_digest(text)}';" for kind, text in _OWN.findall(html))
        return html, f"default-src 'none';{own} base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

    public: dict[str, Any] = {
        "action": "docs.read",
        "audited": False,
        "described": False,
        "public": True,
        "methods": ("GET",),
    }

    @pages.endpoint("/openapi.json", **public)
    def openapi() -> flask.Response:
        return flask.Response(described(), mimetype="application/json")

    @pages.endpoint("/", **public)
    @pages.endpoint("/docs", **public)
    def page() -> flask.Response:
        html, policy = rendered()
        # The Host header is one of the daemon's own: others are refused before.
        html = html.replace(_URL, str(escape(flask.request.host_url.rstrip("/"))))
        headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"}
        return flask.Response(html, mimetype="text/html", headers=headers)

    return pages


def view(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return an OpenAPI ``description`` as templates show it: its ``info`` and its ``groups`` of operations."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, operations in description["paths"].items():
        methods = [method for method in ("get", "post") if method in operations]
        operation = operations[methods[-1]]
        shown = _operation(path, operation, description["components"]["schemas"])
        shown["methods"] = " ".join(method.upper() for method in methods)
        groups.setdefault(operation["tags"][0], []).append(shown)
    texts = {tag["name"]: tag.get("description", "") for tag in description["tags"]}
    return {
        "info": description["info"],
        "groups": [(name, texts.get(name, ""), operations) for name, operations in groups.items()],
    }


def _operation(path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
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
    found: Mapping[str, Any] = (body or {}).get("content", {}).get(kind, {})
    return found


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


def _parameter(found: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a member of the query in the form of :func:`_rows`."""
    return found["name"], _type(found["schema"], {}), found.get("required", False), found.get("description", "")


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref") or next((part["$ref"] for part in schema.get("allOf", ()) if "$ref" in part), None)
    found: Mapping[str, Any] = schemas[reference.rpartition("/")[2]] if reference else schema
    return found


def _type(schema: Mapping[str, Any], item: Mapping[str, Any]) -> str:
    kind = schema.get("type", "any")
    name = " or ".join(kind) if isinstance(kind, list) else str(kind)
    name = f"array of {item.get('format', item.get('type', 'object'))}" if item else name
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
