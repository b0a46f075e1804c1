"""Secrets of HashiCorp Vault and OpenBao, from their key-value engines by HTTP."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

from connmgr.errors import SecretUnavailable
from connmgr.plugin import (
    Deadline,
    Integer,
    Length,
    OneOf,
    Schema,
    Secret,
    SecretSource,
    Text,
    ValidationError,
)
from connmgr.plugin.outside import Unanswered, ask_server, check_server

MAX_ANSWER = 1024 * 1024

_REASONS = {
    400: "it refuses the request",
    403: "it refuses the token, or its policy does not allow this path",
    404: "there is nothing at this path",
    429: "it has too many requests",
    473: "it is a performance standby",
    503: "it is sealed, or down for maintenance",
}


def _path(path: str) -> None:
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise ValidationError("Not a path of names joined by slashes.")


class VaultSchema(Schema):
    url = Text(
        required=True,
        validate=[Length(1, 2000), check_server],
        metadata={"description": "The server's address, such as `https://vault.example:8200`."},
    )
    token = Secret(required=True, metadata={"description": "A token of the server that may read the path."})
    mount = Text(
        load_default="secret",
        validate=[Length(1, 500), _path],
        metadata={"description": "Where the engine is mounted."},
    )
    path = Text(required=True, validate=[Length(1, 2000), _path], metadata={"description": "The secret's path."})
    field = Text(load_default="password", validate=Length(1, 500), metadata={"description": "The field in the secret."})
    kv = Integer(load_default=2, validate=OneOf([1, 2]), metadata={"description": "The engine's version."})
    namespace = Text(
        load_default=None, allow_none=True, validate=Length(1, 500), metadata={"description": "The namespace, if any."}
    )
    caFile = Text(
        load_default=None,
        allow_none=True,
        validate=Length(1, 4096),
        metadata={"description": "A file with the CA of the server's certificate, instead of the system's."},
    )


class VaultSource(SecretSource):
    name = "vault"
    description = "A field of a secret of HashiCorp Vault or OpenBao, in a key-value engine of version 1 or 2."
    schema = VaultSchema
    example: ClassVar = {"url": "https://vault.example:8200", "token": "hvs.example", "path": "servers/web1"}

    def fetch(self, data: Mapping[str, Any], deadline: Deadline) -> str:
        inner = "data/" if data["kv"] == 2 else ""
        content = _get(data, f"/v1/{data['mount']}/{inner}{data['path']}", deadline)
        values = content.get("data")
        if data["kv"] == 2 and isinstance(values, dict):
            values = values.get("data")
        if not isinstance(values, dict):
            raise _failed(data, "its answer has no data, as after the removal of this version")
        value = values.get(data["field"])
        if not isinstance(value, str):
            what = "is not a text" if data["field"] in values else "is not in the secret"
            raise _failed(data, f"the field {data['field']} {what}")
        return value


def _get(data: Mapping[str, Any], path: str, deadline: Deadline) -> dict[str, Any]:
    headers = {"X-Vault-Token": data["token"], "X-Vault-Request": "true", "Accept": "application/json"}
    if data["namespace"]:
        headers["X-Vault-Namespace"] = data["namespace"]
    try:
        status, content = ask_server(
            data["url"], quote(path), deadline, headers=headers, ca_file=data["caFile"], limit=MAX_ANSWER
        )
    except Unanswered as why:
        raise _failed(data, str(why)) from why.__cause__
    if status != http.client.OK:
        # Texts of the server are not repeated.
        moved = "it redirects to another server: name that one" if 300 <= status < 400 else None
        raise _failed(data, moved or _REASONS.get(status) or f"it answered with status {status}")
    try:
        decoded = json.loads(content)
    except (ValueError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        raise _failed(data, "its answer is not a JSON object")
    return decoded


def _failed(data: Mapping[str, Any], why: str) -> SecretUnavailable:
    error = SecretUnavailable(f"The secret source vault at {urlsplit(data['url']).netloc} failed: {why}.")
    error.for_tokens = "The secret source vault failed."
    return error
