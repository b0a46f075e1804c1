"""Secrets of HashiCorp Vault and OpenBao, from their key-value engines by HTTP."""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
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

MAX_ANSWER = 1024 * 1024

_REASONS = {
    400: "it refuses the request",
    403: "it refuses the token, or its policy does not allow this path",
    404: "there is nothing at this path",
    429: "it has too many requests",
    473: "it is a performance standby",
    503: "it is sealed, or down for maintenance",
}


def _server(url: str) -> None:
    parts = urlsplit(url)
    try:
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        usable = False
    if not usable or parts.username is not None or parts.query or parts.fragment:
        raise ValidationError("Not the address of an http or https server, without a user.")
    if parts.scheme == "http" and not _is_loopback(parts.hostname or ""):
        raise ValidationError("http would send token and secret in plain text: use https, or http to this machine.")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _path(path: str) -> None:
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise ValidationError("Not a path of names joined by slashes.")


class VaultSchema(Schema):
    url = Text(
        required=True,
        validate=[Length(1, 2000), _server],
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
        held = content.get("data")
        if data["kv"] == 2 and isinstance(held, dict):
            held = held.get("data")
        if not isinstance(held, dict):
            raise _failed(data, "its answer has no data, as after the removal of this version")
        value = held.get(data["field"])
        if not isinstance(value, str):
            what = "is not a text" if data["field"] in held else "is not in the secret"
            raise _failed(data, f"the field {data['field']} {what}")
        return value


def _get(data: Mapping[str, Any], path: str, deadline: Deadline) -> dict[str, Any]:
    parts = urlsplit(data["url"])
    headers = {"X-Vault-Token": data["token"], "X-Vault-Request": "true", "Accept": "application/json"}
    if data["namespace"]:
        headers["X-Vault-Namespace"] = data["namespace"]
    connection = _connection(data, deadline)
    # The timeout of a socket is that of one step; a server that answers letter by letter would have no end.
    end = threading.Timer(deadline.left(), _cut, (connection,))
    end.daemon = True
    end.start()
    try:
        connection.request("GET", quote(parts.path.rstrip("/") + path), headers=headers)
        with connection.getresponse() as answer:
            content = answer.read(MAX_ANSWER + 1)
    except ssl.SSLCertVerificationError as error:
        raise _failed(data, f"its certificate is not trusted: {error.verify_message}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = "it did not answer in time" if deadline.passed or isinstance(error, TimeoutError) else None
        raise _failed(data, why or getattr(error, "strerror", None) or "it did not answer as an HTTP server") from None
    finally:
        end.cancel()
        connection.close()
    if deadline.passed:
        raise _failed(data, "it did not answer in time")
    if answer.status != http.client.OK:
        # Redirections are not followed: they would take the token elsewhere. Texts of the server are not repeated.
        moved = "it redirects to another server: name that one" if 300 <= answer.status < 400 else None
        raise _failed(data, moved or _REASONS.get(answer.status) or f"it answered with status {answer.status}")
    if len(content) > MAX_ANSWER:
        raise _failed(data, "its answer has more than 1 MiB")
    try:
        decoded = json.loads(content)
    except (ValueError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        raise _failed(data, "its answer is not a JSON object")
    return decoded


def _connection(data: Mapping[str, Any], deadline: Deadline) -> http.client.HTTPConnection:
    parts = urlsplit(data["url"])
    host, seconds = parts.hostname or "", deadline.left(0.1)
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, parts.port, timeout=seconds)
    try:
        context = ssl.create_default_context(cafile=data["caFile"])
    except OSError as error:
        raise _failed(data, f"cannot read the CA file: {error.strerror or 'it has no certificate'}") from error
    return http.client.HTTPSConnection(host, parts.port, timeout=seconds, context=context)


def _cut(connection: http.client.HTTPConnection) -> None:
    if (sock := connection.sock) is not None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _failed(data: Mapping[str, Any], why: str) -> SecretUnavailable:
    error = SecretUnavailable(f"The secret source vault at {urlsplit(data['url']).netloc} failed: {why}.")
    error.for_tokens = "The secret source vault failed."
    return error
