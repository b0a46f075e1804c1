"""The bundled kinds of signers: an authority of connmgr's own, a command, and the ssh engine of HashiCorp's Vault.

A signer turns an order into a line of OpenSSH. ``certificates.py`` checks what each of them returns.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import selectors
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from connmgr.errors import SignerRefused, SignerTimeout, SignerUnavailable
from connmgr.plugin import (
    LEAST_SECONDS,
    CertificateOrder,
    Deadline,
    Length,
    List,
    Schema,
    Secret,
    SshSigner,
    Text,
    ValidationError,
    validates_schema,
)

MAX_ANSWER_BYTES = 256 << 10
SECONDS_WITHOUT_LEASE = 3600.0
"""After this time a token that never ends, or cannot be renewed, is tried again."""

QUOTED_CHARACTERS = 200
"""Longest quotation of a signer's words in an error."""


class AuthoritySchema(Schema):
    """The private key of an authority, which only the daemon has."""

    key = Secret(metadata={"description": "The private key; a new one is made without it."}, required=True)


class OwnAuthority(SshSigner):
    """An Ed25519 key that the vault seals; certificates are signed in the daemon."""

    name = "ca"
    description = "An authority of connmgr's own, whose key the vault keeps sealed."
    schema = AuthoritySchema

    def new_authority(self) -> tuple[Mapping[str, Any], str]:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519

        openssh, public = serialization.Encoding.PEM, serialization.Encoding.OpenSSH
        key = ed25519.Ed25519PrivateKey.generate()
        text = key.private_bytes(openssh, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
        line = key.public_key().public_bytes(public, serialization.PublicFormat.OpenSSH)
        return {"key": text.decode()}, line.decode()

    def sign(self, data: Mapping[str, Any], order: CertificateOrder, *, timeout: float) -> str:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

        try:
            key = serialization.load_ssh_private_key(data["key"].encode(), None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            # The library's message may quote the key.
            raise SignerUnavailable("The authority's private key is damaged, or encrypted: rotate it.") from None
        if not isinstance(key, ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
            raise SignerUnavailable("The authority's private key is of an unsupported kind: rotate it.")
        subject: Any = serialization.load_ssh_public_key(order.public_key.encode())
        builder = (
            serialization.SSHCertificateBuilder()
            .public_key(subject)
            .type(serialization.SSHCertificateType.USER)
            .key_id(order.key_id.encode())
            .serial(order.serial)
            .valid_principals([name.encode() for name in order.principals])
            .valid_after(order.valid_after)
            .valid_before(order.valid_before)
        )
        for extension in order.extensions:
            builder = builder.add_extension(extension.encode(), b"")
        return builder.sign(key).public_bytes().decode()


class SigningCommandSchema(Schema):
    """A program of the daemon's machine."""

    argv = List(
        Text(validate=Length(1, 4096)),
        required=True,
        validate=Length(1, 64),
        metadata={
            "description": "The program and its words, which no shell reads. In a word {public} is the file of the key "
            "to sign, {keyId}, {serial}, {principals} (with commas) and {seconds} say what for; {{ is a brace. It "
            "prints the certificate, or writes it to a file beside {public}, as ssh-keygen -s does."
        },
    )


class SigningCommand(SshSigner):
    """A program that signs, such as ``ssh-keygen -s KEY -I {keyId} -n {principals} -V +{seconds}s {public}``."""

    name = "command"
    description = "A program on the daemon's machine, such as ssh-keygen -s or a script."
    schema = SigningCommandSchema

    def sign(self, data: Mapping[str, Any], order: CertificateOrder, *, timeout: float) -> str:
        deadline = Deadline(timeout)
        with tempfile.TemporaryDirectory(prefix="connmgr-sign-") as directory:
            public = Path(directory, "key.pub")
            public.write_text(order.public_key + "\n")
            words = {
                "public": str(public),
                "keyId": order.key_id,
                "serial": str(order.serial),
                "principals": ",".join(order.principals),
                "seconds": str(order.seconds),
            }
            printed = _run([_filled(word, words) for word in data["argv"]], directory, deadline)
            beside = public.with_name("key-cert.pub")
            with suppress(OSError):
                return beside.read_bytes()[:MAX_ANSWER_BYTES].decode(errors="replace")
            return printed.decode(errors="replace")


def _filled(word: str, words: Mapping[str, str]) -> str:
    for name, value in words.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def _run(argv: Sequence[str], directory: str, deadline: Deadline) -> bytes:
    """Return what the program prints; it has no terminal to ask at, and ends with its whole group at the deadline."""
    inherited = ("HOME", "LANG", "PATH", "SSH_AUTH_SOCK", "USER")
    environment = {name: os.environ[name] for name in inherited if name in os.environ}
    name = Path(argv[0]).name
    try:
        process = subprocess.Popen(  # noqa: S603 - the owner's own command
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=directory,
            env=environment,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its words are malformed"
        raise SignerUnavailable(f"The signing program {name} cannot be started: {reason}.") from error
    with process:
        try:
            printed, complaint = _outputs(process, name, deadline)
            code = process.wait(deadline.left(LEAST_SECONDS))
        except subprocess.TimeoutExpired:
            raise _late(f"The signing program {name}", deadline) from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if code:
        raise SignerRefused(f"The signing program {name} ended with exit status {code}: {_quoted(complaint)}")
    return printed


def _outputs(process: subprocess.Popen[bytes], name: str, deadline: Deadline) -> tuple[bytes, bytes]:
    """Return stdout and stderr to their ends.

    :raises SignerTimeout: they did not end in time.
    :raises SignerUnavailable: the program prints more than any certificate has.
    """
    assert process.stdout  # noqa: S101 - it was started with both
    assert process.stderr  # noqa: S101
    read = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
        for stream in read:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(deadline.left())
            if not ready and deadline.passed:
                raise _late(f"The signing program {name}", deadline)
            for key, _ in ready:
                stream = key.fileobj  # type: ignore[assignment]
                piece = os.read(key.fd, 1 << 16)
                read[stream] += piece
                if not piece:
                    selector.unregister(stream)
                if len(read[stream]) > MAX_ANSWER_BYTES:
                    raise SignerUnavailable(f"The signing program {name} prints more than {MAX_ANSWER_BYTES} bytes.")
    return bytes(read[process.stdout]), bytes(read[process.stderr])


def _late(who: str, deadline: Deadline) -> SignerTimeout:
    return SignerTimeout(f"{who} did not answer within {deadline.seconds:.0f} s.")


def _quoted(said: bytes | str) -> str:
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return f"{line[:QUOTED_CHARACTERS] or 'it said nothing'}."


def _address(value: str) -> None:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ValidationError("Must be an address such as https://vault.example:8200.")
    if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
        raise ValidationError("Must begin with https:// unless it is on loopback: a token goes there.")


class SigningVaultSchema(Schema):
    """A role of an ssh secrets engine, and how to log in there."""

    address = Text(required=True, validate=_address, metadata={"description": "Such as https://vault.example:8200."})
    role = Text(required=True, validate=Length(1, 128), metadata={"description": "The role that signs."})
    mount = Text(
        load_default="ssh", validate=Length(1, 128), metadata={"description": "Where the ssh engine is mounted."}
    )
    namespace = Text(validate=Length(1, 256), metadata={"description": "The namespace, if there are any."})
    token = Secret(metadata={"description": "A token; or else roleId and secretId."})
    roleId = Text(validate=Length(1, 256), metadata={"description": "The role id of an AppRole."})
    secretId = Secret(metadata={"description": "The secret id of that AppRole."})
    appRoleMount = Text(
        load_default="approle", validate=Length(1, 128), metadata={"description": "Where AppRole is mounted."}
    )
    caFile = Text(
        validate=Length(1, 4096),
        metadata={"description": "The certificates that HTTPS trusts; the system's otherwise."},
    )

    @validates_schema
    def _logs_in_by_one_way(self, data: Mapping[str, Any], **_: Any) -> None:
        by_role = ["roleId" in data, "secretId" in data]
        if ("token" in data) == any(by_role) or by_role.count(True) == 1:
            raise ValidationError("Either token is needed, or roleId and secretId.")


class VaultSecretsEngine(SshSigner):
    """``ssh/sign/ROLE`` of HashiCorp's Vault or OpenBao.

    Tokens of AppRoles are kept in memory for half of their lease; a token of one's own is renewed as often.
    """

    name = "vault"
    description = "A role of the ssh secrets engine of HashiCorp Vault or OpenBao."
    schema = SigningVaultSchema

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens: dict[bytes, tuple[float, str]] = {}
        self._renewals: dict[bytes, float] = {}

    def sign(self, data: Mapping[str, Any], order: CertificateOrder, *, timeout: float) -> str:
        deadline = Deadline(timeout)
        path = f"/v1/{quote(data['mount'])}/sign/{quote(data['role'], safe='')}"
        body = {
            "public_key": order.public_key,
            "cert_type": "user",
            "key_id": order.key_id,
            "valid_principals": ",".join(order.principals),
            "ttl": f"{order.seconds}s",
            "extensions": dict.fromkeys(order.extensions, ""),
        }
        if "token" in data:
            self._renew(data, deadline)
        for last in (False, True):
            token = data.get("token") or self._logged_in(data, deadline)
            status, answer = _asked(data, path, body, token, deadline)
            if status == http.client.FORBIDDEN and "token" not in data and not last:
                # It was revoked before its time.
                self._forget(data)
                continue
            break
        signed = _result(data, status, answer).get("data")
        key = signed.get("signed_key") if isinstance(signed, dict) else None
        if not isinstance(key, str):
            raise SignerUnavailable(f"{data['address']} did not answer as Vault does: there is no signed_key.")
        return key

    def _logged_in(self, data: Mapping[str, Any], deadline: Deadline) -> str:
        """Return a token of the AppRole; the lock is held meanwhile, so that many logins need one."""
        if not self._lock.acquire(timeout=deadline.left()):
            raise _late(data["address"], deadline)
        try:
            until, token = self._tokens.get(_account(data), (0.0, ""))
            if time.monotonic() < until:
                return token
            body = {"role_id": data["roleId"], "secret_id": data["secretId"]}
            path = f"/v1/auth/{quote(data['appRoleMount'])}/login"
            auth = _result(data, *_asked(data, path, body, None, deadline)).get("auth")
            new = auth.get("client_token") if isinstance(auth, dict) else None
            if not isinstance(auth, dict) or not isinstance(new, str):
                raise SignerUnavailable(f"{data['address']} did not answer as Vault does: there is no client_token.")
            self._tokens[_account(data)] = (time.monotonic() + _half_of(auth.get("lease_duration")), new)
            return new
        finally:
            self._lock.release()

    def _renew(self, data: Mapping[str, Any], deadline: Deadline) -> None:
        """Renew the token if half of its lease is over, or that is unknown; one that cannot be is used as it is."""
        name = hashlib.sha256(json.dumps([data["address"], data["token"]]).encode()).digest()
        with self._lock:
            if time.monotonic() < self._renewals.get(name, 0.0):
                return
            # Other logins do not wait for the answer.
            self._renewals[name] = time.monotonic() + SECONDS_WITHOUT_LEASE
        status, content = _asked(data, "/v1/auth/token/renew-self", {}, data["token"], deadline)
        if status == http.client.OK and isinstance(auth := _result(data, status, content).get("auth"), dict):
            with self._lock:
                self._renewals[name] = time.monotonic() + _half_of(auth.get("lease_duration"))

    def _forget(self, data: Mapping[str, Any]) -> None:
        with self._lock:
            self._tokens.pop(_account(data), None)


def _half_of(lease: object) -> float:
    """Return after how many seconds a token is renewed: its other half is for requests under way, and for clocks."""
    return lease / 2 if isinstance(lease, int) and lease > 0 else SECONDS_WITHOUT_LEASE


def _account(data: Mapping[str, Any]) -> bytes:
    words = [data["address"], data.get("namespace"), data["appRoleMount"], data["roleId"], data["secretId"]]
    return hashlib.sha256(json.dumps(words).encode()).digest()


def _asked(
    data: Mapping[str, Any], path: str, body: Mapping[str, Any], token: str | None, deadline: Deadline
) -> tuple[int, bytes]:
    """Post ``body`` and return the status and the body of the answer.

    :raises SignerUnavailable: there is none.
    :raises SignerTimeout: it did not come whole in time.
    """
    address = urlsplit(data["address"])
    headers = {"Content-Type": "application/json", "X-Vault-Request": "true"}
    headers |= {"X-Vault-Token": token} if token else {}
    headers |= {"X-Vault-Namespace": data["namespace"]} if data.get("namespace") else {}
    host, left = str(address.hostname), deadline.left(LEAST_SECONDS)
    try:
        link = http.client.HTTPConnection(host, address.port, timeout=left)
        if address.scheme == "https":
            context = ssl.create_default_context(cafile=data.get("caFile"))
            link = http.client.HTTPSConnection(host, address.port, timeout=left, context=context)
        with _ending(link, deadline):
            link.request("POST", address.path.rstrip("/") + path, json.dumps(body), headers)
            answer = link.getresponse()
            content = answer.read(MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if deadline.passed or isinstance(error, TimeoutError):
            raise _late(data["address"], deadline) from error
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else type(error).__name__
        raise SignerUnavailable(f"{data['address']} cannot be reached: {_quoted(reason)}") from error
    if deadline.passed:
        raise _late(data["address"], deadline)
    return answer.status, content


@contextmanager
def _ending(link: http.client.HTTPConnection, deadline: Deadline) -> Iterator[None]:
    """Close ``link`` afterwards, and at the deadline even while a server sends one byte after the other."""

    def end() -> None:
        with suppress(OSError, AttributeError):
            link.sock.shutdown(socket.SHUT_RDWR)

    link.connect()
    timer = threading.Timer(deadline.left(), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        link.close()


def _result(data: Mapping[str, Any], status: int, content: bytes) -> dict[str, Any]:
    """Return the JSON of an answer.

    :raises SignerRefused | SignerUnavailable: its status, or its form, is another.
    """
    where = data["address"]
    try:
        answer = json.loads(content)
    except ValueError:
        answer = None
    errors = answer.get("errors") if isinstance(answer, dict) else None
    said = _quoted("; ".join(map(str, errors)) if isinstance(errors, list) else "")
    if status == http.client.OK and isinstance(answer, dict):
        return answer
    if status in (400, 403, 404):
        raise SignerRefused(f"{where} does not sign for the role {data['role']} ({status}): {said}")
    if status == http.client.OK:
        raise SignerUnavailable(f"{where} did not answer as Vault does: its answer is not JSON.")
    raise SignerUnavailable(f"{where} fails with status {status}: {said}")
