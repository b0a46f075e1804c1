"""Rewrite connmgr/page/contract.d.ts, the types of the API's messages for the page, from the contract.

.venv/bin/python scripts/page_types.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from connmgr.api.app import GROUPS
from connmgr.api.docs import describe

DOCUMENT = Path(__file__).resolve().parent.parent / "connmgr" / "page" / "contract.d.ts"
HEAD = "// Written by scripts/page_types.py from the contract: what the API takes and answers, by path."
PREFIX = "#/components/schemas/"
_WORD = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")


def declarations() -> str:
    """Return the types of all messages, and of the endpoints, as TypeScript declares them."""
    description = json.loads(json.dumps(describe(GROUPS)))
    schemas = description["components"]["schemas"]
    lines = [HEAD, ""]
    for name, schema in sorted(schemas.items()):
        lines += [f"export interface {name} {_members(schema)}" if _is_object(schema) else _alias(name, schema), ""]
    lines += ["export interface Endpoints {", *_endpoints(description["paths"]), "}", ""]
    lines.append('export type Answer<Path> = Path extends keyof Endpoints ? Endpoints[Path]["answer"] : any;')
    return "\n".join(lines) + "\n"


def _is_object(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object" and "properties" in schema


def _alias(name: str, schema: Mapping[str, Any]) -> str:
    return f"export type {name} = {_type(schema)};"


def _endpoints(paths: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for path, operations in sorted(paths.items()):
        operation = operations.get("post")
        if operation is None:
            continue
        taken = _content(operation.get("requestBody"))
        answered = _content(operation["responses"].get("200"))
        request = "any" if taken is None else _type(taken)
        yield f'  "{path}": {{ request: {request}; answer: {"any" if answered is None else _type(answered)} }};'


def _content(body: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the schema of a body in JSON; that of a body of another kind, or of none, is None."""
    found: Mapping[str, Any] | None = (body or {}).get("content", {}).get("application/json", {}).get("schema")
    return found


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(PREFIX)
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return " | ".join(dict.fromkeys(_type(one) for one in schema[choice]))
    if "allOf" in schema:
        return " & ".join(_type(one) for one in schema["allOf"])
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_type({**schema, "type": one}) for one in kind)
    return _simple(kind, schema)


def _simple(kind: str | None, schema: Mapping[str, Any]) -> str:
    if kind == "array":
        inner = _type(schema.get("items", {}))
        return f"({inner})[]" if " " in inner else f"{inner}[]"
    if kind == "object":
        if "properties" in schema:
            return _members(schema, one_line=True)
        rest = schema.get("additionalProperties")
        return f"Record<string, {_type(rest) if isinstance(rest, dict) else 'any'}>"
    return {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}.get(
        kind or "", "any"
    )


def _members(schema: Mapping[str, Any], *, one_line: bool = False) -> str:
    required = set(schema.get("required", ()))
    members = [
        f"{name if _WORD.fullmatch(name) else json.dumps(name)}{'' if name in required else '?'}: {_type(field)};"
        for name, field in schema["properties"].items()
    ]
    if one_line:
        return f"{{ {' '.join(members)} }}"
    return "\n".join(["{", *(f"  {member}" for member in members), "}"])


if __name__ == "__main__":
    DOCUMENT.write_text(declarations())
